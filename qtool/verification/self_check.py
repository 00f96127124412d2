"""Results of the self-test of a file, and of `qtool verify`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from qtool.core.argument_names import argument
from qtool.core.number_texts import part, quantity
from qtool.core.records import JsonRecord
from qtool.core.summary import Result, Summary
from qtool.verification.coverage import Coverage
from qtool.verification.exactness import Exactness
from qtool.verification.parity import TOLERANCE, Difference
from qtool.verification.portability import Portability

_SATURATES = (
    "this CPU lacks VNNI, and its kernels saturate sums of products of uint8 and int8 codes: write "
    "the file with weights of 7 bits (reduce_range=True), or run it where there is VNNI"
)


@dataclass(frozen=True)
class SessionCheck(JsonRecord):
    """A file as it is written, in float operators, and in the runtime's integer kernels.

    Attributes:
        samples: number of samples.
        batches: sizes of the batches that they came in.
        difference: difference of the outputs.
        coverage: the kernel that the runtime has for each operator, as `qtool inspect` prints it.
        not_finite: outputs that are NaN or Inf in every value, by their names.
        saturates: whether this CPU adds products of uint8 and int8 codes with saturation.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("integer_mac_share", "passed")

    samples: int
    batches: tuple[int, ...]
    difference: Difference
    coverage: Coverage = field(metadata={"json": False})
    not_finite: tuple[str, ...] = ()
    saturates: bool = False

    @property
    def integer_mac_share(self) -> float:
        """Share of the known MACs in integer kernels, 0 to 1."""
        return self.coverage.share

    @property
    def passed(self) -> bool:
        """Whether there are outputs, which differ by rounding alone, see `TOLERANCE`."""
        return self.difference.mean <= TOLERANCE and not self.not_finite

    @property
    def is_compared(self) -> bool:
        """Whether the file as written computes in float what integer kernels compute."""
        integer = [row for row in self.coverage.rows if row.integer]
        return not integer or any(row.op != row.kernel for row in integer)

    def rows(self) -> list[tuple[str, str]]:
        """Return (label, text) for a summary."""
        sizes = " and ".join(map(str, self.batches))
        where = f"{self.coverage.runtime}, {quantity(self.samples, 'sample')} in batches of {sizes}"
        steps = f"max {self.difference.worst:.2f}, mean {self.difference.mean:.3f}"
        limit = f"of 255 steps of the outputs; mean allowed: {TOLERANCE:g}"
        compared = f"as written against its integer kernels: {steps} ({limit})"
        if not self.is_compared:
            compared = "its integer operators run alike in both, so that nothing was compared"
        rows = [self.coverage.row(), ("sessions", f"{compared} ({where})")]
        if self.not_finite:
            rows.append(("outputs", f"NaN or Inf in every value: {', '.join(self.not_finite)}"))
        elif not self.passed and self.saturates:
            rows.append(("", _SATURATES))
        return rows


_NEW_FILE = "take a fresh copy of the file, or convert again"


@dataclass(frozen=True)
class SelfCheck(JsonRecord):
    """Result of the self-test of a file on this machine.

    Attributes:
        present: whether the file contains a test.
        missing: why it contains none.
        failure: why the test could not be run.
        unmodified: whether graph and weights are as qtool wrote them; None if the file has no
            digest of them.
        profile: the numerics profile that the codes were compared with; empty if the file has none
            for this CPU.
        tensors: number of integer tensors compared to the last bit.
        identical: number of them that are as stored.
        first: the first one that differs, or those that share its digest.
        other: another profile that gives these codes, if they differ.
        unlike: profiles with which the file gives other codes than with `profile`.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("passed",)

    present: bool = False
    missing: str = ""
    failure: str = ""
    unmodified: bool | None = None
    profile: str = ""
    tensors: int = 0
    identical: int = 0
    first: tuple[str, ...] = ()
    other: str = ""
    unlike: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every integer tensor is as stored."""
        return self.identical == self.tensors

    @property
    def passed(self) -> bool:
        """Whether nothing differs. A file without a test passes."""
        return self.unmodified is not False and not self.failure and self.exact

    def rows(self) -> list[tuple[str, str]]:
        """Return (label, text) for a summary."""
        if self.unmodified is None:
            return [("self-test", f"none in this file{self.missing and ': '}{self.missing}")]
        return [("content", self._content()), ("self-test", self._codes())]

    def __str__(self) -> str:
        return "\n".join(f"{label}: {text}" for label, text in self.rows())

    def _content(self) -> str:
        if self.unmodified:
            return "unmodified since qtool wrote it"
        return f"modified since qtool wrote it; {_NEW_FILE}"

    def _codes(self) -> str:
        if self.missing or self.failure:
            return f"{self.missing and 'none, '}{self.missing or self.failure}"
        if not self.tensors:
            return "no codes to compare on this CPU"
        one = self.exact and self.tensors == 1
        count = "the" if one else part(self.identical, self.tensors)
        noun = "integer tensor that the test stores" if one else "integer tensors"
        text = f"{count} {noun} as planned ({self.profile})"
        if self.exact and self.unlike:
            return f"{text}; these codes differ from those on {', '.join(self.unlike)}"
        if self.exact:
            return text
        text += f"; the first difference is in {' or '.join(self.first)}. "
        if self.other:
            text += f"The codes match those of {self.other}. "
        return text + self._advice()

    def _advice(self) -> str:
        if not self.unmodified:
            return "The file was modified"
        return (
            "The kernels of this CPU or of this version of ONNX Runtime give other results: "
            f"convert for a target that fits this CPU, with {argument('--target')}"
        )


@dataclass(frozen=True)
class FileCheck(Result, Exactness):
    """The self-test of a file, and the comparison of the integer engine with ONNX Runtime.

    Attributes:
        self_test: result of the file's self-test on this machine.
        not_compared: why the engine could not be compared; `samples` is then 0.
        delegate: comparison with the default delegate of a TFLite file, whose kernels differ from
            the reference kernels and between processors; None for other files.
        other_target: the target of the file if its kernels are not those of this machine.
        portability: behaviour of an ONNX file of another tool on other CPUs; None for other files.
        sessions: comparison of two settings of the runtime, where the engine cannot run.
    """

    self_test: SelfCheck = field(default_factory=SelfCheck)
    not_compared: str = ""
    delegate: Exactness | None = None
    other_target: str = ""
    portability: Portability | None = None
    sessions: SessionCheck | None = None

    @property
    def passed(self) -> bool:
        """Whether the self-test passes, every integer kernel is exact, and sessions agree."""
        agree = self.sessions is None or self.sessions.passed
        return agree and self.self_test.passed and super().passed

    def summary(self, title: str = "quantized") -> Summary:
        """Return the result in a few lines."""
        compared = [("engine", f"not compared: {self.not_compared}")]
        rows = [*self.self_test.rows(), *(compared if self.not_compared else self.rows())]
        if self.sessions is not None:
            torch = "" if self.self_test.present else ", which needs torch"
            other = f"not computed{torch}; emulate them with {argument('--cpu')}"
            rows += [*self.sessions.rows(), ("other CPUs", other)]
        if self.delegate is not None:
            rows.append(("delegate", self.delegate.rows()[0][1]))
        if self.portability is not None:
            rows += [("other CPUs", line) for line in str(self.portability).splitlines()]
            if any(cpu.nodes for cpu in self.portability.cpus):
                rows.append(("", f"the same codes everywhere: convert with {argument('--scales')}"))
        if not self.self_test.present and self.self_test.unmodified is None:  # of another tool
            rows.append(("accuracy", "not compared with the float model: `qtool evaluate` does"))
        return Summary(title, self._headline(), tuple(rows))

    def _headline(self) -> str:
        """Return the verdict, which is that of `passed`."""
        if not self.passed:
            return "not verified"
        verdict, reason = "verified", self.rounding
        if self.other_target:
            verdict = f"verified on this CPU alone, which {self.other_target} is not for"
        if self.not_compared:
            alone = self.sessions is not None and not self.self_test.present
            how = "in two settings of the runtime" if alone else "by its self-test"
            if alone and self.sessions is not None and not self.sessions.is_compared:
                return "it runs; with torch the integer engine verifies it"
            reason = f"{how}; the engine was not compared"
        return f"{verdict}: {reason}" if reason else verdict
