"""Result of running a file at another size than that of its sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qtool.verification.fidelity import decibels_text


@dataclass(frozen=True)
class SizeCheck:
    """A file at other sizes of its dynamic dimensions.

    Attributes:
        sizes: the sizes, in words: "height 64, width 96".
        sqnr_db: SQNR of the worst float output against the float model, dB; None without noise.
        wrong: what differs from the model; "" if nothing does.
        dimensions: names of the dimensions that cause it.
    """

    sizes: str
    sqnr_db: float | None
    wrong: str = ""
    dimensions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.sizes}: {self.wrong or decibels_text(self.sqnr_db)}"


def size_row(checks: Sequence[SizeCheck]) -> tuple[str, str]:
    """Return (label, figures) for a summary."""
    return "other sizes", "; ".join(map(str, checks))
