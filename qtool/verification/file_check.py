"""Result of `qtool verify`: the self-test of a file, and the engine compared with the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field

from qtool.core.summary import Result, Summary
from qtool.verification.exactness import Exactness
from qtool.verification.self_check import SelfCheck


@dataclass(frozen=True)
class FileCheck(Result, Exactness):
    """The self-test of a file, and the comparison of the integer engine with ONNX Runtime.

    Attributes:
        self_test: result of the file's self-test on this machine.
        not_compared: why the engine could not be compared; `samples` is then 0.
        delegate: comparison with the default delegate of a TFLite file, whose kernels differ from
            the reference kernels and between processors; None for other files.
    """

    self_test: SelfCheck = field(default_factory=SelfCheck)
    not_compared: str = ""
    delegate: Exactness | None = None

    @property
    def passed(self) -> bool:
        """Whether the self-test passes and every integer kernel is exact."""
        return self.self_test.passed and super().passed

    def summary(self, title: str = "quantized") -> Summary:
        """Return the result in a few lines."""
        compared = [("engine", f"not compared: {self.not_compared}")]
        rows = [*self.self_test.rows(), *(compared if self.not_compared else self.rows())]
        if self.delegate is not None:
            rows.append(("delegate", self.delegate.rows()[0][1]))
        good = self.exact and self.passed
        return Summary(title, "verified" if good else "not verified", tuple(rows))
