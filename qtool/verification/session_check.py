"""Result of running a file in two settings of its runtime, where no integer engine is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from qtool.core.number_texts import quantity
from qtool.core.records import JsonRecord
from qtool.verification.coverage import Coverage
from qtool.verification.parity import TOLERANCE, Difference

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
