"""An exponential moving average of each batch's minimum and maximum."""

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

_DTYPES = {
    "min": np.float64,
    "max": np.float64,
    "first_min": np.float64,
    "first_max": np.float64,
    "batches": np.int64,
}


class MovingAverage(Extremes):
    """e = x for the first batch, then e = momentum * e + (1 - momentum) * x, in float64.

    x is the batch's minimum (and, separately, its maximum). Unlike the other statistics this one
    depends on the batches and their order: later batches weigh more.
    """

    ordered = True

    def __init__(self, axis: int | None, *, momentum: float = 0.9) -> None:
        self.axis = axis
        self.momentum = momentum
        self.batches = 0
        self.low = self.high = np.zeros(0)
        self.first = np.zeros((2, 0))  # rows: minimum, maximum; columns: channels

    @property
    def settings(self) -> Mapping[str, float]:
        return {"momentum": self.momentum}

    def update(self, x: torch.Tensor) -> None:
        low, high = extremes(x, self.axis, self.channels)
        if low.size == 0:
            return
        new = np.stack([low, high]).astype(np.float64)
        if self.empty:
            self.first = new
        else:
            new = self.momentum * self._mean() + (1 - self.momentum) * new
        self.low, self.high = new
        self.batches += 1

    def _mean(self) -> NDArray[np.float64]:
        """Return the averages as `first` is."""
        return np.stack([self.low, self.high])

    def merge(self, other: Statistic) -> None:
        """Continue with the batches of `other`; exact up to float64 rounding.

        `other` started at its first value in place of this mean, a difference that each of its
        `other.batches` steps multiplied by the momentum.
        """
        check_mergeable(self, other)
        assert isinstance(other, MovingAverage)
        if other.empty:
            return
        if self.empty:
            self.first, mean = other.first, other._mean()
        else:
            mean = other._mean() + self.momentum**other.batches * (self._mean() - other.first)
            mean[1] = mean.max(0)  # rounding must not put it under the minimum
        self.low, self.high = mean
        self.batches += other.batches

    def state(self) -> State:
        """`min`, `max`, `first_min`, `first_max`: float64 [C]; `batches`: int64 [1]."""
        return {
            "min": self.low.copy(),
            "max": self.high.copy(),
            "first_min": self.first[0].copy(),
            "first_max": self.first[1].copy(),
            "batches": np.array([self.batches], np.int64),
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Array], axis: int | None, *, momentum: float = 0.9
    ) -> MovingAverage:
        arrays = check_range_state(state, _DTYPES, axis)
        channels = len(arrays["min"])
        if any(len(arrays[key]) != channels for key in ("first_min", "first_max")):
            raise CalibrationError("damaged statistics: wrong number of channels")
        if len(arrays["batches"]) != 1 or arrays["batches"][0] < 0:
            raise CalibrationError("damaged statistics: 'batches' is not one count")
        if (arrays["batches"][0] > 0) != (channels > 0):
            raise CalibrationError("damaged statistics: 'batches' does not fit the channels")
        new = cls(axis, momentum=momentum)
        new.batches = int(arrays["batches"][0])
        new.low, new.high = arrays["min"], arrays["max"]
        new.first = np.stack([arrays["first_min"], arrays["first_max"]])
        return new
