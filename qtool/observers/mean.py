"""The exact mean."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.core.errors import CalibrationError, DataError
from qtool.observers.statistic import (
    State,
    Statistic,
    as_tensor,
    channel_count,
    check_mergeable,
    check_state,
    chunks,
)

_CLASSES = 256  # biased exponents of float32; 255 is NaN and Inf
_ROWS = 1 << 10  # channels summed together
_MAX_COUNT = 1 << 39  # elements whose 24-bit integers an int64 can sum

_DTYPES = {"count": np.int64, "terms": np.int64, "exponent": np.int64, "sum": np.int64}

Ints = NDArray[np.int64]


class Mean:
    """The exact sum of all elements and their number, per tensor or per channel.

    Floats with equal exponents are multiples of one power of two, with 24 bits: each exponent has
    a separate int64 sum. So the state depends on the multiset of values alone, and `value` rounds
    once. A grid common to all values would have to be known in advance, or grow with the data and
    round some values twice.

    A chunk is summed in float64, which is exact below 2**29 elements.
    """

    def __init__(self, axis: int | None) -> None:
        self.axis = axis
        self.count = np.zeros(0, np.int64)
        self.sums = np.zeros((0, _CLASSES), np.int64)  # of multiples of 2**_unit

    @property
    def channels(self) -> int:
        return self.count.size

    @property
    def settings(self) -> Mapping[str, float]:
        return {}

    @property
    def empty(self) -> bool:
        return self.channels == 0

    def update(self, x: torch.Tensor) -> None:
        channels = channel_count(x, self.axis, self.channels)
        if channels == 0:
            return
        sums = np.zeros((channels, _CLASSES), np.int64)
        for start, chunk in chunks(x, self.axis, _ROWS):
            sums[start : start + chunk.shape[0]] += _sums(chunk)
        self._add(np.full(channels, x.numel() // channels), sums)

    def merge(self, other: Statistic) -> None:
        check_mergeable(self, other)
        assert isinstance(other, Mean)
        if not other.empty:
            self._add(other.count, other.sums)

    def _add(self, count: Ints, sums: Ints) -> None:
        if not self.empty:
            count, sums = self.count + count, self.sums + sums
        if (count > _MAX_COUNT).any():
            raise CalibrationError(
                f"more than {_MAX_COUNT} elements of a channel; calibrate on fewer"
            )
        self.count, self.sums = count.copy(), sums.copy()

    def value(self) -> torch.Tensor:
        """Return the mean, rounded once: float64, rank 0 per tensor, else [C].

        Raises CalibrationError when empty.
        """
        if self.empty:
            raise CalibrationError("no data was observed")
        means = []
        for count, sums in zip(self.count, self.sums, strict=True):
            total = sum(int(sums[e]) << max(int(e) - 1, 0) for e in np.flatnonzero(sums))
            means.append(float(Fraction(total, int(count) << 149)))
        return as_tensor(np.array(means), self.axis)

    def state(self) -> State:
        """`count` int64 [C]; of each channel the `terms` int64 [C] sums that are not 0.

        `exponent`, `sum`: int64 [sum of terms], channel after channel: the biased exponent e of
        float32 and the sum in units of 2**(max(e, 1) - 150).
        """
        channel, exponent = np.nonzero(self.sums)
        return {
            "count": self.count.copy(),
            "terms": np.bincount(channel, minlength=self.channels).astype(np.int64),
            "exponent": exponent.astype(np.int64),
            "sum": self.sums[channel, exponent],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[Any]], axis: int | None) -> Mean:
        arrays = check_state(state, _DTYPES)
        count, terms, exponent, sums = (arrays[key] for key in _DTYPES)
        if len(count) != len(terms) or (axis is None and len(count) > 1):
            raise CalibrationError("damaged statistics: wrong number of channels")
        if (count < 1).any() or (count > _MAX_COUNT).any():
            raise CalibrationError("damaged statistics: an impossible count")
        if (terms < 0).any() or not terms.sum() == len(exponent) == len(sums):
            raise CalibrationError("damaged statistics: 'sum' has the wrong length")
        channel = np.repeat(np.arange(len(count)), terms)
        place = channel * _CLASSES + exponent
        if (exponent < 0).any() or (exponent >= _CLASSES - 1).any() or (np.diff(place) <= 0).any():
            raise CalibrationError("damaged statistics: 'exponent' is out of order")
        largest = count[channel] << 24
        if (sums == 0).any() or (sums > largest).any() or (sums < -largest).any():
            raise CalibrationError("damaged statistics: an impossible sum")
        new = cls(axis)
        new.count, new.sums = count, np.zeros((len(count), _CLASSES), np.int64)
        new.sums[channel, exponent] = sums
        return new


def _sums(chunk: torch.Tensor) -> Ints:
    """Return the sums of the rows of [c, n] float32 by exponent, in its units: int64 [c, 256].

    Raises DataError for NaN and Inf.
    """
    rows = chunk.shape[0]
    classes = (chunk.view(torch.int32) >> 23) & 255
    classes += _CLASSES * torch.arange(rows, dtype=torch.int32, device=chunk.device)[:, None]
    flat = torch.bincount(classes.reshape(-1), chunk.double().reshape(-1), rows * _CLASSES)
    sums = flat.cpu().numpy().reshape(rows, _CLASSES)
    if (sums[:, -1] != 0).any():
        raise DataError("NaN or Inf (or a value beyond float32)")
    units = 150 - np.maximum(np.arange(_CLASSES), 1)
    result: Ints = np.ldexp(sums, units).astype(np.int64)
    return result
