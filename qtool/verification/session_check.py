"""Result of running a file in two settings of its runtime, where no integer engine is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from qtool.core.formats import quantity
from qtool.core.records import JsonRecord
from qtool.verification.coverage import Coverage
from qtool.verification.parity import TOLERANCE, Difference


@dataclass(frozen=True)
class SessionCheck(JsonRecord):
    """A file as it is written, in float operators, and in the runtime's integer kernels.

    Attributes:
        samples: number of samples.
        batches: sizes of the batches that they came in.
        difference: difference of the outputs.
        coverage: the kernel that the runtime has for each operator, as `qtool inspect` prints it.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("integer_mac_share", "passed")

    samples: int
    batches: tuple[int, ...]
    difference: Difference
    coverage: Coverage = field(metadata={"json": False})

    @property
    def integer_mac_share(self) -> float:
        """Share of the known MACs in integer kernels, 0 to 1."""
        return self.coverage.share

    @property
    def passed(self) -> bool:
        """Whether the outputs differ by rounding alone, see `TOLERANCE`."""
        return self.difference.mean <= TOLERANCE

    def rows(self) -> list[tuple[str, str]]:
        """Return (label, text) for a summary."""
        sizes = " and ".join(map(str, self.batches))
        where = f"{self.coverage.runtime}, {quantity(self.samples, 'sample')} in batches of {sizes}"
        limit = f"mean allowed: {TOLERANCE:g}"
        compared = f"as written against its integer kernels: {self.difference} ({limit})"
        return [self.coverage.row(), ("sessions", f"{compared} ({where})")]
