"""Exact second moments: products of features, summed over everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.errors import CalibrationError, DataError
from qtool.observers.statistic import (
    State,
    Statistic,
    channels_of,
    check_mergeable,
    check_state,
    extremes,
)

__all__ = ["CrossMoments", "Moments"]

_LARGEST = (1 << 15) - 1  # of a 16-bit code
_MOST = 1 << 33  # rows whose products an int64 can sum
_BLOCK, _ROWS = 1 << 20, 1 << 10  # elements of an operand of one product, but so many rows

# Integers that float32 and also TF32 and bfloat16, which a user may allow in products, hold.
_SHORT = 1 << 8

# What sums a product of such integers, of any others, and the bits of whole numbers it holds.
_BITS = ((torch.float32, 24), (torch.float64, 53))

_DTYPES = {"rows": np.int64, "shape": np.int64, "sum": np.int64}

Ints = NDArray[np.int64]


class _Products:
    """sum of outer(x, y) over rows: int64 [F, G], of values as integers on a fixed grid."""

    def __init__(self, axis: int | None, steps: Mapping[str, float]) -> None:
        self.axis = axis
        self.settings = steps
        self.rows = 0
        self.sum = np.zeros((0, 0), np.int64)

    @property
    def channels(self) -> int:
        """F, 1 per tensor, 0 before any data."""
        return self.sum.shape[0]

    @property
    def empty(self) -> bool:
        return self.rows == 0

    def merge(self, other: Statistic) -> None:
        check_mergeable(self, other)
        assert isinstance(other, _Products)
        if not other.empty:
            self._check_width(other.sum.shape[1])
            self._add(other.rows, other.sum)

    def _check_width(self, width: int) -> None:
        if not self.empty and width != self.sum.shape[1]:
            raise CalibrationError(
                f"cannot merge moments with {self.sum.shape[1]} and with {width} channels"
            )

    def _add(self, rows: int, products: Ints) -> None:
        if self.rows + rows > _MOST:
            raise CalibrationError(f"more than {_MOST} rows to multiply; calibrate on fewer")
        if self.empty:
            self.sum = np.zeros_like(products)
        self.sum += products
        self.rows += rows

    def value(self) -> torch.Tensor:
        """The mean of the products in the units of the values: float64 [F, G].

        Raises CalibrationError when empty.
        """
        if self.empty:
            raise CalibrationError("no data was seen")
        steps = list(self.settings.values())
        return torch.from_numpy(self.sum / self.rows) * (steps[0] * steps[-1])


class Moments(_Products):
    """X^T X of the features along `axis`, every other position a row; None: one feature.

    Values are taken as integers rint(x / step), half to even, clipped to 16 bits (-32767..32767);
    codes (step 1) as they are. Their products are summed without rounding, so the state follows
    from the multiset of rows alone. The step is a setting and no function of the data, because a
    grid that grew with the data would round early values twice. Memory: 8 F**2 bytes, as much
    again while a batch is added.
    """

    def __init__(self, axis: int | None, *, step: float = 1.0) -> None:
        super().__init__(axis, {"step": step})

    def update(self, x: torch.Tensor) -> None:
        if channels_of(x, self.axis, self.channels):
            codes = _Codes(x, self.axis, self.settings["step"])
            self._add(codes.rows, _products(codes, codes))

    def state(self) -> State:
        """`rows`, `shape` int64 [1], [2]; `sum` int64 [F (F+1) / 2], the upper triangle by rows."""
        upper = self.sum[np.triu_indices(self.channels)]
        return _state(self, upper)

    @classmethod
    def from_state(
        cls, state: Mapping[str, NDArray[Any]], axis: int | None, *, step: float = 1.0
    ) -> Moments:
        new = cls(axis, step=step)
        rows, (features, same), upper = _checked(state, axis)
        if features != same or len(upper) != features * (features + 1) // 2:
            raise CalibrationError("damaged statistics: 'sum' has the wrong length")
        new.rows, new.sum = rows, np.zeros((features, features), np.int64)
        new.sum[np.triu_indices(features)] = upper
        new.sum += np.triu(new.sum, 1).T
        if (new.sum.diagonal() < 0).any():
            raise CalibrationError("damaged statistics: a negative sum of squares")
        return new


class CrossMoments(_Products):
    """X^T Y of two tensors that differ at most in size along `axis`; else as Moments.

    `step` is of x, `other_step` of y.
    """

    def __init__(self, axis: int | None, *, step: float = 1.0, other_step: float = 1.0) -> None:
        super().__init__(axis, {"step": step, "other_step": other_step})

    def update(self, x: torch.Tensor, y: torch.Tensor | None = None) -> None:
        """Take one batch of both tensors; of x alone, it is multiplied with itself.

        Raises DataError, and changes nothing, as `Statistic.update` says, and where the rows of x
        and y do not pair.
        """
        y = x if y is None else y
        width = 0 if self.empty else self.sum.shape[1]
        features = channels_of(x, self.axis, self.channels)
        others = channels_of(y, self.axis, width)
        if _beside(x, self.axis) != _beside(y, self.axis):
            raise DataError(
                f"rows of shapes {tuple(x.shape)} and {tuple(y.shape)} along axis {self.axis} "
                "do not pair"
            )
        if features and others:
            one = _Codes(x, self.axis, self.settings["step"])
            other = _Codes(y, self.axis, self.settings["other_step"])
            self._add(one.rows, _products(one, other))

    def state(self) -> State:
        """`rows`, `shape` int64 [1], [2]; `sum` int64 [F G], by rows."""
        return _state(self, self.sum.reshape(-1).copy())

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, NDArray[Any]],
        axis: int | None,
        *,
        step: float = 1.0,
        other_step: float = 1.0,
    ) -> CrossMoments:
        new = cls(axis, step=step, other_step=other_step)
        rows, (features, others), flat = _checked(state, axis)
        if len(flat) != features * others:
            raise CalibrationError("damaged statistics: 'sum' has the wrong length")
        new.rows, new.sum = rows, flat.reshape(features, others)
        return new


def _state(moments: _Products, flat: Ints) -> State:
    shape = np.array(moments.sum.shape, np.int64)
    return {"rows": np.array([moments.rows], np.int64), "shape": shape, "sum": flat}


def _checked(
    state: Mapping[str, NDArray[Any]], axis: int | None
) -> tuple[int, tuple[int, int], Ints]:
    """Rows, shape and sums of a state. Raises CalibrationError when they cannot be."""
    arrays = check_state(state, _DTYPES)
    rows, shape, flat = (arrays[key] for key in _DTYPES)
    if len(rows) != 1 or not 0 <= rows[0] <= _MOST:
        raise CalibrationError("damaged statistics: 'rows' is not one count")
    features = 0 if rows[0] == 0 else 1
    if len(shape) != 2 or (shape < features).any() or (not features and shape.any()):
        raise CalibrationError("damaged statistics: 'shape' is not that of moments")
    if axis is None and (shape > 1).any():
        raise CalibrationError("damaged statistics: wrong number of channels")
    if (np.abs(flat) > int(rows[0]) * _LARGEST**2).any():
        raise CalibrationError("damaged statistics: an impossible sum")
    return int(rows[0]), (int(shape[0]), int(shape[1])), flat


def _beside(x: torch.Tensor, axis: int | None) -> tuple[int, ...]:
    """The shape of `x` without its axis of features."""
    shape = list(x.shape)
    if axis is not None:
        del shape[axis]
    return tuple(shape)


class _Codes:
    """A tensor as rows of features that are integers, made block by block.

    bound: none is larger in magnitude. Raises DataError for NaN and Inf, before any block.
    """

    def __init__(self, x: torch.Tensor, axis: int | None, step: float) -> None:
        low, high = extremes(x, None, 0)
        x = x.detach()
        features = 1 if axis is None else x.shape[axis]
        self._x = (x if axis is None else x.movedim(axis, -1)).reshape(-1, features)
        self._step = step
        self.rows, self.features = self._x.shape
        self.bound = round(min(max(-float(low[0]), float(high[0])) / step, _LARGEST))

    def blocks(self, rows: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
        """[at most `rows`, features] after each other."""
        for block in self._x.split(rows):
            codes = block.float() if self._step == 1 else block.float().double() / self._step
            yield codes.round().clamp_(-_LARGEST, _LARGEST).to(dtype)


def _products(one: _Codes, other: _Codes) -> Ints:
    """one^T other: int64 [F, G].

    Every partial sum of a block's product is an integer below 2**24 (2**53), which float32
    (float64) holds, so the order in which the library adds does not matter.
    """
    dtype, bits = _BITS[max(one.bound, other.bound) > _SHORT]
    exact = (1 << bits) // max(one.bound * other.bound, 1)
    rows = min(exact, max(_ROWS, _BLOCK // max(one.features, other.features)))
    total: torch.Tensor | None = None
    for x, y in zip(one.blocks(rows, dtype), other.blocks(rows, dtype), strict=True):
        product = (x.T @ y).to(torch.int64)
        total = product if total is None else total.add_(product)
    assert total is not None
    found: Ints = total.cpu().numpy()
    return found
