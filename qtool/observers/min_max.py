"""The exact running minimum and maximum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.core.errors import CalibrationError
from qtool.core.types import Array
from qtool.observers.statistic import (
    Extremes,
    State,
    Statistic,
    check_mergeable,
    check_range_state,
    extremes,
)

_DTYPES = {"min": np.float32, "max": np.float32, "rows": np.int64}


class MinMax(Extremes):
    """Lowest and highest element; independent of batches, their order and merging.

    Attributes:
        axis, low, high: see `Extremes`; float32.
        rows: number of elements per channel.
    """

    def __init__(self, axis: int | None) -> None:
        self.axis = axis
        self.rows = 0
        self.low = np.zeros(0, np.float32)
        self.high = np.zeros(0, np.float32)

    def update(self, x: torch.Tensor) -> None:
        self._include(*extremes(x, self.axis, self.channels))
        self.rows += x.numel() // max(1, self.channels)

    def merge(self, other: Statistic) -> None:
        check_mergeable(self, other)
        assert isinstance(other, MinMax)
        self._include(other.low, other.high)
        self.rows += other.rows

    def _include(self, low: NDArray[np.float32], high: NDArray[np.float32]) -> None:
        if low.size and not self.empty:
            low, high = np.minimum(self.low, low), np.maximum(self.high, high)
        if low.size:
            self.low, self.high = low, high

    def state(self) -> State:
        """`min` and `max`: float32 [C] (C = 1 per tensor, 0 when empty); `rows`: int64 [1]."""
        rows = np.array([self.rows], np.int64)
        return {"min": self.low.copy(), "max": self.high.copy(), "rows": rows}

    @classmethod
    def from_state(cls, state: Mapping[str, Array], axis: int | None) -> MinMax:
        arrays = check_range_state(state, _DTYPES, axis)
        if arrays["rows"].shape != (1,) or (arrays["rows"][0] > 0) != bool(arrays["min"].size):
            raise CalibrationError("damaged statistics: wrong number of rows")
        new = cls(axis)
        new.low, new.high, new.rows = arrays["min"], arrays["max"], int(arrays["rows"][0])
        return new
