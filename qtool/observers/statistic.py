"""The interface of statistics, and the traversal of a tensor that they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.core.errors import CalibrationError, DataError
from qtool.core.types import Array

State = dict[str, Array]
Floats = NDArray[np.float32]

# Elements per chunk. On the CPU a chunk and its temporaries stay in the cache; elsewhere fewer,
# larger chunks (with all temporaries still under 32 MiB) mean fewer launches.
CHUNK = 1 << 18
_DEVICE_CHUNK = 1 << 20


class Statistic(Protocol):
    """A summary of all batches of one tensor. Small, mergeable, serializable.

    Attributes:
        axis: one channel per index along this axis (may be negative); None: one for the tensor.
    """

    axis: int | None

    @property
    def channels(self) -> int:
        """Number of channels: 1 per tensor, 0 before any data."""
        ...

    @property
    def settings(self) -> Mapping[str, float]:
        """Arguments of the constructor besides the axis; merging needs equal settings."""
        ...

    @property
    def empty(self) -> bool:
        """True until an element is observed."""
        ...

    def update(self, x: torch.Tensor) -> None:
        """Add one batch of any float dtype, device and shape. An empty batch changes nothing.

        Raises:
            DataError: `x` contains NaN or Inf, is not a float tensor, has no such axis, or another
                number of channels than before. Nothing changes then.
        """
        ...

    def merge(self, other: Statistic) -> None:
        """Add the batches of `other` after the own ones.

        Raises:
            CalibrationError: the two differ in kind, axis, settings or number of channels.
        """
        ...

    def state(self) -> State:
        """Return small rank-1 arrays; equal statistics give equal bytes."""
        ...

    @classmethod
    def from_state(cls, state: Mapping[str, Array], axis: int | None) -> Statistic:
        """Return the statistic with this state; settings other than defaults are keywords.

        Raises:
            CalibrationError: the state is damaged.
        """
        ...


class RangeStatistic(Statistic, Protocol):
    """A statistic with a range."""

    def extent(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lowest and highest value, without clipping: float64, rank 0 or [C].

        Raises CalibrationError when empty.
        """
        ...


class Extremes:
    """The part of a range statistic that follows from the ends of its channels.

    Attributes:
        axis: axis of the channels; None per tensor.
        low: lowest values [C].
        high: highest values [C].
    """

    axis: int | None
    low: Array
    high: Array

    @property
    def channels(self) -> int:
        return self.low.size

    @property
    def settings(self) -> Mapping[str, float]:
        return {}

    @property
    def empty(self) -> bool:
        return self.channels == 0

    def extent(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.empty:
            raise CalibrationError("no data was observed")
        return as_tensor(self.low, self.axis), as_tensor(self.high, self.axis)


def depends_on_order(statistic: Statistic) -> bool:
    """Return whether the state depends on batches and their order (`ordered = True`)."""
    return bool(getattr(statistic, "ordered", False))


def chunks(x: torch.Tensor, axis: int | None, rows: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield `x` in float32 chunks of about a MiB (or one element per channel, if that is more).

    Yields (first channel, [c, n]) with c <= `rows`; together the chunks contain every element once,
    in any order within a channel. No temporary is larger than a chunk; dense float32 memory is not
    copied.
    """
    limit = CHUNK if x.device.type == "cpu" else _DEVICE_CHUNK
    x = x.detach()
    x = _in_memory_order(x).unsqueeze(0) if axis is None else x.movedim(axis, 0)
    for first in range(0, x.shape[0], rows):
        for part in _split(x[first : first + rows], limit):
            yield first, part.reshape(part.shape[0], -1).float()


def _in_memory_order(x: torch.Tensor) -> torch.Tensor:
    """Return a view with descending strides, flat if possible (channels-last, transposed)."""
    x = x.permute(sorted(range(x.dim()), key=x.stride, reverse=True))
    return x.reshape(-1) if x.is_contiguous() else x


def _split(x: torch.Tensor, limit: int) -> Iterator[torch.Tensor]:
    """Split along every axis but the first until a part has at most `limit` elements."""
    longest = max(range(1, x.dim()), key=lambda d: x.shape[d], default=0)
    if longest == 0 or x.numel() <= limit or x.shape[longest] == 1:
        yield x
        return
    size = max(1, x.shape[longest] * limit // x.numel())
    for part in x.split(size, longest):
        yield from _split(part, limit)


def channel_count(x: torch.Tensor, axis: int | None, before: int) -> int:
    """Return the number of channels along `axis`; 1 for None, 0 when `x` has no elements.

    Args:
        x: a batch.
        axis: axis of the channels.
        before: number of channels of earlier batches, 0 for none.

    Raises:
        DataError: not a float tensor, no such axis, or another number of channels than before.
    """
    if not x.is_floating_point():
        raise DataError(f"expected a float tensor to observe, got {x.dtype}")
    if axis is not None and not -x.dim() <= axis < x.dim():
        raise DataError(f"no axis {axis} in a tensor of shape {tuple(x.shape)}")
    if x.numel() == 0:
        return 0
    channels = 1 if axis is None else x.shape[axis]
    if before not in (0, channels):
        raise DataError(
            f"{channels} channels along axis {axis} of shape {tuple(x.shape)}, "
            f"but {before} in earlier batches"
        )
    return channels


def extremes(x: torch.Tensor, axis: int | None, before: int) -> tuple[Floats, Floats]:
    """Return lowest and highest element per channel: two float32 arrays [C], [0] if `x` is empty.

    `before` as in `channel_count`; raises DataError like `Statistic.update`.
    """
    channels = channel_count(x, axis, before)
    if channels == 0:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    if axis is not None and x.dtype == torch.float32:  # in place: six times as fast
        others = [d for d in range(x.dim()) if d != axis % x.dim()]
        data = x.detach()
        return finite_ends(*((data.amin(others), data.amax(others)) if others else (data, data)))
    low = torch.full((channels,), torch.inf, device=x.device)
    high = -low
    for _, chunk in chunks(x, axis, channels):
        ends = chunk_ends(chunk)
        low, high = torch.minimum(low, ends[0]), torch.maximum(high, ends[1])
    return finite_ends(low, high)


def chunk_ends(chunk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return lowest and highest element of each row of [c, n], NaN if a row contains one.

    Computed separately: on the CPU aminmax is slower, along an axis ten times.
    """
    if chunk.shape[0] == 1:
        low, high = low_high(chunk)
        return chunk.new_full((1,), low), chunk.new_full((1,), high)
    return chunk.amin(1), chunk.amax(1)


def low_high(x: torch.Tensor, low: float | None = None) -> tuple[float, float]:
    """Return lowest (or `low`, if known) and highest of all elements, NaN if one is NaN.

    Numpy takes half the time of torch where it can read the tensor.
    """
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        array = x.numpy()
        return float(array.min()) if low is None else low, float(array.max())
    return float(x.amin()) if low is None else low, float(x.amax())


def finite_ends(low: torch.Tensor, high: torch.Tensor) -> tuple[Floats, Floats]:
    """Return the ends as float32 arrays, -0 as 0. Raises DataError for NaN and Inf."""
    ends: Floats = torch.stack([low, high]).cpu().numpy() + np.float32(0)
    if not np.isfinite(ends).all():
        raise DataError("NaN or Inf (or a value beyond float32)")
    return ends[0], ends[1]


def as_tensor(values: Array, axis: int | None) -> torch.Tensor:
    """Return an array [C] as float64 tensor: rank 0 per tensor, [C] per channel."""
    t = torch.from_numpy(values.astype(np.float64))
    return t.reshape(()) if axis is None else t


def check_mergeable(one: Statistic, other: Statistic) -> None:
    """Raise CalibrationError unless kind, axis, settings and number of channels are equal.

    An empty statistic has no channels yet and fits any number.
    """
    if type(one) is not type(other):
        raise CalibrationError(
            f"cannot merge {type(other).__name__} statistics into {type(one).__name__}"
        )
    mine, theirs = {"axis": one.axis, **one.settings}, {"axis": other.axis, **other.settings}
    if mine != theirs:
        raise CalibrationError(f"cannot merge statistics made with {mine} and with {theirs}")
    if one.channels and other.channels and one.channels != other.channels:
        raise CalibrationError(
            f"cannot merge statistics of {one.channels} and {other.channels} channels"
        )


def check_state(state: Mapping[str, object], dtypes: Mapping[str, Any]) -> dict[str, Array]:
    """Return copies of the arrays of `state`; raise CalibrationError if it is damaged."""
    if set(state) != set(dtypes):
        raise CalibrationError(f"damaged statistics: has {sorted(state)}, needs {sorted(dtypes)}")
    arrays = {}
    for key, dtype in dtypes.items():
        array = state[key]
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
            raise CalibrationError(f"damaged statistics: {key!r} is no {np.dtype(dtype)} vector")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CalibrationError(f"damaged statistics: {key!r} holds NaN or Inf")
        arrays[key] = array + np.zeros(1, dtype)  # a copy, and -0 becomes 0
    return arrays


def check_range_state(
    state: Mapping[str, object], dtypes: Mapping[str, Any], axis: int | None
) -> dict[str, Array]:
    """Like `check_state`; "min" and "max" must also be in order and of equal length."""
    arrays = check_state(state, dtypes)
    low, high = arrays["min"], arrays["max"]
    if len(low) != len(high) or (axis is None and len(low) > 1):
        raise CalibrationError("damaged statistics: wrong number of channels")
    if (low > high).any():
        raise CalibrationError("damaged statistics: a minimum above its maximum")
    return arrays
