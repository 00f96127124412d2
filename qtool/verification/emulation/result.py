"""What the comparison of a file's outputs and codes on several processors gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qtool.core.formats import count, db, percent, table
from qtool.core.records import to_json

_NAMED = 3  # nodes that a sentence names


@dataclass(frozen=True)
class FirstDifference:
    """The first tensor of codes, in the order of the graph, that differs.

    Attributes:
        node: the operator that gives it.
        op: the type of that operator.
        tensor: the name of the codes.
        float_nodes: nodes in float that stand between it and the codes ahead of it, as
            "name (type)"; empty where an integer kernel gives other codes for equal codes.
    """

    node: str
    op: str
    tensor: str
    float_nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.node} ({self.op})"


@dataclass(frozen=True)
class CpuResult:
    """What a file gives on one processor, beside what it gives on this machine.

    Attributes:
        cpu: the name of the processor.
        runtime: what ran the file there, with its version.
        outputs: number of output values.
        outputs_identical: how many are the same to the last bit.
        codes: number of codes in all integer tensors.
        codes_identical: how many are the same.
        sqnr_db: signal-to-noise ratio of the outputs against this machine's, of the worst output;
            None where there is no difference.
        predictions: samples whose class was compared (argmax over the last axis of a first output
            [samples, classes]); None where the output is no such thing.
        changed: how many samples got another class.
        first: where the codes differ first; None where all are equal.
        kernels: integer kernels of this machine that were compared, each on equal codes.
        wrong_kernels: those that gave other codes; or, of kernels that give floats, values that
            differ by more than 1e-6 of the largest.
        hidden: kernels that compute with integers inside and could not be compared.
        undisturbed: whether the outputs are the same where the file also returns its codes.
    """

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
        """All codes are equal, and no kernel is wrong that gives floats; all outputs are equal,
        too, where not all kernels could be compared."""
        if self.codes_identical != self.codes or self.wrong_kernels:
            return False
        seen = self.undisturbed and not self.hidden
        return seen or self.outputs_identical == self.outputs

    @property
    def changed_share(self) -> float | None:
        """Samples that got another class, as a share; None where there are no classes."""
        if self.changed is None or not self.predictions:
            return None
        return self.changed / self.predictions

    def cells(self) -> tuple[str, ...]:
        """One row of the table: CPU, outputs, codes, dB, changed predictions, first difference."""
        return (
            self.cpu,
            f"{self.outputs_identical} of {self.outputs}",
            _share(self.codes_identical, self.codes) if self.codes else "none",
            db(self.sqnr_db),
            percent(self.changed_share) or "-",
            str(self.first) if self.first else "-",
        )

    def remarks(self) -> list[str]:
        """Sentences on what the numbers mean; none where all outputs are equal."""
        said = filter(None, (self._codes_remark(), self._probe_remark()))
        return [f"{self.cpu}: {text}" for text in said]

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
                return f"the file gives no codes to compare; {hidden or 'it computes in float'}"
            why = f"nodes in float or {hidden}" if hidden else "the last bits of nodes in float"
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
            "a file that also returns its codes gives other outputs, since other kernels run; the "
            "codes are those of such a file"
        )


@dataclass(frozen=True)
class CpuComparison:
    """A file on other processors, compared with this machine.

    Attributes:
        file: its name.
        samples: how many were run.
        reference: this machine, and its runtime.
        results: one for each processor.
    """

    file: str
    samples: int
    reference: str
    results: tuple[CpuResult, ...]

    @property
    def identical(self) -> bool:
        """Whether every processor gives the codes of this machine; see `CpuResult.identical`."""
        return all(r.identical for r in self.results)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = to_json(self)
        for row, result in zip(found["results"], self.results, strict=True):
            row |= {"identical": result.identical, "changed_share": result.changed_share}
        return {**found, "identical": self.identical}

    def __str__(self) -> str:
        columns = (
            "CPU",
            "outputs identical",
            "codes identical",
            "dB",
            "changed predictions",
            "first difference",
        )
        title = f"{self.file} on {self.samples} samples, compared with {self.reference}"
        text = table(columns, [r.cells() for r in self.results], title, "lrrrrl")
        return "\n".join([text, *(line for r in self.results for line in r.remarks())])


def _share(part: int, whole: int) -> str:
    """Never 100 % where one differs."""
    if part == whole:
        return f"all {count(whole)}"
    return f"{percent(min(part / whole, 0.999999), 4)} of {count(whole)}"


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
