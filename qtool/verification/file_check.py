"""What `qtool verify` finds out about a file: its self-test, and the engine beside the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qtool.verification.bit_exactness import Exactness
from qtool.verification.run_self_test import SelfCheck


@dataclass(frozen=True)
class FileCheck(Exactness):
    """The self-test of a file, and the comparison of the integer engine with ONNX Runtime.

    Attributes:
        self_test: what the file's own test gave on this machine.
        not_compared: why the engine could not be compared; `samples` is 0 then.
    """

    self_test: SelfCheck = field(default_factory=SelfCheck)
    not_compared: str = ""

    @property
    def passed(self) -> bool:
        """The self-test finds nothing; every integer kernel is exact, and what differs comes from
        nodes in float."""
        return self.self_test.passed and super().passed

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "self_test": self.self_test.to_json()}

    def __str__(self) -> str:
        engine = f"integer engine: not compared, {self.not_compared}"
        return f"{self.self_test}\n{engine if self.not_compared else super().__str__()}"
