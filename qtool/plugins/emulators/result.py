"""Results of comparing a file on several processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from qtool.core.number_texts import count, db, percent, quantity, table
from qtool.core.records import to_json
from qtool.core.summary import Summarized, Summary

_NAMED = 3  # nodes that a sentence names


@dataclass(frozen=True)
class FirstDifference:
    """The first tensor of codes, in the order of the graph, that differs.

    Attributes:
        node: the operator that computes it.
        op: the type of that operator.
        tensor: the name of the codes.
        float_nodes: float nodes between it and the codes before it, as "name (type)"; empty if an
            integer kernel gives other codes for equal codes.
    """

    node: str
    op: str
    tensor: str
    float_nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.node} ({self.op})"


@dataclass(frozen=True)
class CpuResult:
    """Results of a file on one processor, compared with this machine.

    Attributes:
        cpu: name of the processor.
        runtime: the runtime there, with its version.
        outputs: number of output values.
        outputs_identical: number of them that are identical to the last bit.
        codes: number of codes in all integer tensors, each computed from the codes of this machine.
        codes_identical: number of them that are identical.
        sqnr_db: SQNR of the outputs against this machine's, of the worst output; None if nothing
            differs.
        predictions: number of samples whose class was compared (argmax over the last axis of a
            first output [samples, classes]); None for an output of another shape.
        changed: number of samples whose class changed.
        first: the first difference of these codes; None if all are equal.
        kernels: number of integer kernels of this machine compared, each on equal codes.
        wrong_kernels: those that gave other codes, or floats that differ by more than 1e-6 of the
            largest.
        hidden: kernels that compute with integers inside and could not be compared.
        undisturbed: whether the outputs stay the same when the file returns and reads codes.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("identical", "changed_share")

    cpu: str
    runtime: str
    outputs: int
    outputs_identical: int
    codes: int
    codes_identical: int
    sqnr_db: float | None
    predictions: int | None
    changed: int | None
    first: FirstDifference | None
    kernels: int
    wrong_kernels: tuple[str, ...]
    hidden: tuple[str, ...]
    undisturbed: bool

    @property
    def identical(self) -> bool:
        """Whether all codes are equal and no kernel is wrong.

        If not all kernels could be compared, the outputs have to be equal too.
        """
        if self.codes_identical != self.codes or self.wrong_kernels:
            return False
        all_compared = self.undisturbed and not self.hidden
        return all_compared or self.outputs_identical == self.outputs

    @property
    def changed_share(self) -> float | None:
        """Share of the samples whose class changed; None without classes."""
        if self.changed is None or not self.predictions:
            return None
        return self.changed / self.predictions

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table: CPU, outputs, codes, dB, changed predictions, difference."""
        return (
            self.cpu,
            f"{self.outputs_identical} of {self.outputs}",
            _share(self.codes_identical, self.codes) if self.codes else "none",
            db(self.sqnr_db),
            percent(self.changed_share) or "-",
            str(self.first) if self.first else "-",
        )

    def remarks(self) -> list[str]:
        """Return sentences that explain the numbers; none if all outputs are equal."""
        remarks = filter(None, (self._codes_remark(), self._probe_remark()))
        return [f"{self.cpu}: {text}" for text in remarks]

    def _codes_remark(self) -> str:
        hidden = f"kernels with integers inside: {_named(self.hidden)}" if self.hidden else ""
        if self.wrong_kernels:
            wrong = f"{len(self.wrong_kernels)} of {self.kernels}"
            named = _named(self.wrong_kernels)
            return f"{wrong} integer kernels give other results for equal codes: {named}"
        if self.first is None:
            if self.outputs_identical == self.outputs:
                return ""
            if not self.codes:
                return f"the file has no codes to compare; {hidden or 'it computes in float'}"
            why = f"float nodes or {hidden}" if hidden else "the last bits of float nodes"
            return f"all codes are equal; the outputs differ by {why}"
        if self.first.float_nodes:
            return (
                f"all {self.kernels} integer kernels give equal results for equal codes; the "
                f"difference begins in float: {_named(self.first.float_nodes)}"
                + (f"; not compared: {hidden}" if hidden else "")
            )
        return ""

    def _probe_remark(self) -> str:
        if self.undisturbed:
            return ""
        return (
            "returning and reading codes changes which kernels run, and with them the outputs; the "
            "codes are those of the changed file"
        )


@dataclass(frozen=True)
class CpuComparison(Summarized):
    """A file on other processors, compared with this machine.

    Attributes:
        file: name of the file.
        samples: number of samples.
        reference: this machine and its runtime.
        results: one for each processor.
        missing: processors that were to be compared and cannot be emulated here.
        missing_reason: what is not installed for them, and how to install it.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("identical",)

    file: str
    samples: int
    reference: str
    results: tuple[CpuResult, ...]
    missing: tuple[str, ...] = ()
    missing_reason: str = ""

    @property
    def identical(self) -> bool:
        """Whether every processor of `results` gives the codes of this machine."""
        return all(r.identical for r in self.results)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = to_json(self)
        return value

    def summary(self, title: str | None = None) -> Summary:
        """Return the result in a few lines."""
        unlike = [r.cpu for r in self.results if not r.identical]
        each = f"{len(self.results)} CPUs" if self.missing else "each CPU"
        text = f"differs on {', '.join(unlike)}" if unlike else f"identical codes on {each}"
        rows = [("compared", f"{quantity(self.samples, 'sample')}, with {self.reference}")]
        if self.missing:
            text += f"; not run on {', '.join(self.missing)}"
            rows.append(("not run", self.missing_reason))
        return Summary(title or self.file, text, tuple(rows))

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.summary()}"

    def table(self) -> str:
        """Return a table with a row per CPU, and sentences that explain the numbers."""
        columns = (
            "CPU",
            "outputs identical",
            "codes identical",
            "dB",
            "changed predictions",
            "first difference",
        )
        text = table(columns, [r.cells() for r in self.results], align="lrrrrl")
        return "\n".join([text, *(line for r in self.results for line in r.remarks())])


def _share(part: int, whole: int) -> str:
    """Describe a share, never as 100 % if one differs."""
    if part == whole:
        return f"all {count(whole)}"
    return f"{percent(part / whole, 4)} of {count(whole)}"


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
