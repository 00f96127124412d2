"""Counts of equal values in the outputs of two runs, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qtool.core.sqnr import decibels
from qtool.core.types import Array
from qtool.plugins.emulators.jobs import read_array

_LAST_BITS = 1e-6


@dataclass
class Tally:
    """Values of one tensor over all batches, on this machine and on another processor.

    Attributes:
        total: number of values compared.
        identical: number of them that are identical to the last bit; NaN equals NaN.
        signal: sum of squares of this machine's values.
        noise: sum of squares of the differences.
        largest: largest magnitude of this machine's values.
        worst: largest difference.
    """

    total: int = 0
    identical: int = 0
    signal: float = 0.0
    noise: float = 0.0
    largest: float = 0.0
    worst: float = 0.0

    def add(self, here: Array, there: Array) -> None:
        """Count one batch.

        Nothing is equal in arrays of different shapes. int8 codes equal uint8 codes that are larger
        by 128.
        """
        here, there = _same_dtype(here, there)
        if here.shape != there.shape:
            self.total += max(here.size, there.size)
            self.noise = self.worst = np.inf
            return
        self.total += here.size
        same = np.equal(here, there)
        if here.dtype.kind == "f" and there.dtype.kind == "f":
            same |= np.isnan(here) & np.isnan(there)
        self.identical += int(same.sum())
        wide = here.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(same, 0.0, wide - there.astype(np.float64))
            error = np.nan_to_num(np.abs(error), nan=np.inf)
            finite = np.abs(wide[np.isfinite(wide)])
        self.signal += float(np.square(finite).sum())
        self.noise += float(np.square(error).sum())
        self.largest = max(self.largest, float(finite.max(initial=0.0)))
        self.worst = max(self.worst, float(error.max(initial=0.0)))

    @property
    def equal(self) -> bool:
        """Whether all values are identical."""
        return self.identical == self.total

    @property
    def near(self) -> bool:
        """Whether only the last bits of float32 differ: by 1e-6 of the largest value at most.

        A pair of products that saturates differs by more.
        """
        return self.worst <= _LAST_BITS * self.largest or self.equal

    @property
    def sqnr_db(self) -> float | None:
        """The SQNR of the values; None if all are equal."""
        return decibels(self.signal, self.noise)


def _same_dtype(here: Array, there: Array) -> tuple[Array, Array]:
    if here.dtype == there.dtype:
        return here, there
    shift = {"int8": 128, "uint8": 0}
    if {str(a.dtype) for a in (here, there)} <= set(shift):
        one, other = (a.astype(np.int16) + shift[str(a.dtype)] for a in (here, there))
        return one, other
    return here, there


def tallies(here: Path, there: Path, batches: int, indices: Iterable[int]) -> dict[int, Tally]:
    """Compare some outputs of two folders; return output -> its count."""
    counts = {i: Tally() for i in indices}
    for batch in range(batches):
        for i, tally in counts.items():
            tally.add(read_array(here, batch, i), read_array(there, batch, i))
    return counts


def changed_predictions(here: Path, there: Path, samples: Sequence[int]) -> tuple[int, int] | None:
    """Return the number of samples, and of those whose predicted class changed.

    The class is the argmax of the first output [samples, classes]; returns None for another shape.

    Args:
        here: folder of outputs of this machine.
        there: folder of outputs of the other processor.
        samples: number of samples of each batch.
    """
    changed = 0
    for batch, count in enumerate(samples):
        first, second = (read_array(folder, batch, 0) for folder in (here, there))
        if first.ndim != 2 or first.shape != second.shape:
            return None
        if first.shape[0] != count or first.shape[1] < 2:
            return None
        changed += int((first.argmax(-1) != second.argmax(-1)).sum())
    return sum(samples), changed
