"""What every statistic can do, and the walk over a tensor that all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.core.errors import CalibrationError, DataError

State = dict[str, NDArray[Any]]
Floats = NDArray[np.float32]

# Elements in a piece. On the CPU it and what is computed from it stay in the cache; elsewhere
# fewer, larger pieces (with all temporaries still under 32 MiB) mean fewer launches.
CHUNK = 1 << 18
_DEVICE_CHUNK = 1 << 20


class Measure(Protocol):
    """What two statistics must share to be merged.

    `axis` None watches the tensor as a whole (one channel); an int, which may be negative,
    watches every slice along that axis apart.
    """

    axis: int | None

    @property
    def channels(self) -> int:
        """How many channels were seen: 1 per tensor, 0 before any data."""
        ...

    @property
    def settings(self) -> Mapping[str, float]:
        """What the constructor was given besides the axis; merging needs equal settings."""
        ...


class Statistic(Measure, Protocol):
    """What is remembered of all the batches one tensor took. Small, mergeable, savable."""

    @property
    def empty(self) -> bool:
        """True until an element was seen."""
        ...

    def update(self, x: torch.Tensor) -> None:
        """Take one batch: any float dtype, device and shape. A batch without elements is nothing.

        Raises DataError, and changes nothing, when `x` holds NaN or Inf, is not a float
        tensor, has no such axis, or has another number of channels than before.
        """
        ...

    def merge(self, other: Statistic) -> None:
        """Become what seeing own batches first, then `other`'s, would have made.

        Raises CalibrationError when the two do not measure the same thing.
        """
        ...

    def state(self) -> State:
        """Small rank-1 arrays; equal statistics give equal bytes."""
        ...

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[Any]], axis: int | None) -> Statistic:
        """The statistic that gave `state`; settings other than the defaults go by keyword.

        Raises CalibrationError when the state is damaged.
        """
        ...


class RangeStatistic(Statistic, Protocol):
    """A statistic that knows a range."""

    def extent(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The lowest and highest value to represent, without clipping: float64, rank 0 or [C].

        Raises CalibrationError when empty.
        """
        ...


def depends_on_order(statistic: Statistic) -> bool:
    """Whether the same data in another order, or in other batches, gives another state: where the
    class says `ordered = True`."""
    return bool(getattr(statistic, "ordered", False))


def chunks(x: torch.Tensor, axis: int | None, rows: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Walk `x` in float32 pieces of about a MiB (or one element per channel, if that is more).

    Yields (first channel, [c, n]) with c <= `rows`; together the pieces hold every element once,
    in any order within a channel. No temporary is larger than a piece; dense float32 memory is
    not copied at all.
    """
    limit = CHUNK if x.device.type == "cpu" else _DEVICE_CHUNK
    x = x.detach()
    x = _in_memory_order(x).unsqueeze(0) if axis is None else x.movedim(axis, 0)
    for first in range(0, x.shape[0], rows):
        for part in _split(x[first : first + rows], limit):
            yield first, part.reshape(part.shape[0], -1).float()


def _in_memory_order(x: torch.Tensor) -> torch.Tensor:
    """A view with strides descending, flat where that is possible (channels-last, transposed)."""
    x = x.permute(sorted(range(x.dim()), key=x.stride, reverse=True))
    return x.reshape(-1) if x.is_contiguous() else x


def _split(x: torch.Tensor, limit: int) -> Iterator[torch.Tensor]:
    """Cut along every axis but the first until a part has at most `limit` elements."""
    longest = max(range(1, x.dim()), key=lambda d: x.shape[d], default=0)
    if longest == 0 or x.numel() <= limit or x.shape[longest] == 1:
        yield x
        return
    size = max(1, x.shape[longest] * limit // x.numel())
    for part in x.split(size, longest):
        yield from _split(part, limit)


def channel_count(x: torch.Tensor, axis: int | None, seen: int) -> int:
    """How many channels a batch has along `axis`; 1 for None, 0 when `x` has no elements.

    `seen` is the number of channels of earlier batches, 0 for none. Raises DataError when `x` is
    not a float tensor, has no such axis, or has another number of channels than before.
    """
    if not x.is_floating_point():
        raise DataError(f"expected a float tensor to observe, got {x.dtype}")
    if axis is not None and not -x.dim() <= axis < x.dim():
        raise DataError(f"no axis {axis} in a tensor of shape {tuple(x.shape)}")
    if x.numel() == 0:
        return 0
    channels = 1 if axis is None else x.shape[axis]
    if seen not in (0, channels):
        raise DataError(
            f"{channels} channels along axis {axis} of shape {tuple(x.shape)}, "
            f"but {seen} in earlier batches"
        )
    return channels


def extremes(x: torch.Tensor, axis: int | None, seen: int) -> tuple[Floats, Floats]:
    """Lowest and highest element per channel: two float32 arrays [C], [0] when `x` is empty.

    Raises DataError as `Statistic.update` says; `seen` as for `channels_of`.
    """
    channels = channel_count(x, axis, seen)
    if channels == 0:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    if axis is not None and x.dtype == torch.float32:  # where they lie: six times as fast
        others = [d for d in range(x.dim()) if d != axis % x.dim()]
        data = x.detach()
        return finite_ends(*((data.amin(others), data.amax(others)) if others else (data, data)))
    low = torch.full((channels,), torch.inf, device=x.device)
    high = -low
    for _, piece in chunks(x, axis, channels):
        ends = chunk_ends(piece)
        low, high = torch.minimum(low, ends[0]), torch.maximum(high, ends[1])
    return finite_ends(low, high)


def chunk_ends(piece: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Lowest and highest of each row of [c, n], NaN where a row holds one; on its device.

    Both apart: on the CPU aminmax takes longer, along an axis ten times as long.
    """
    if piece.shape[0] == 1:
        low, high = low_high(piece)
        return piece.new_full((1,), low), piece.new_full((1,), high)
    return piece.amin(1), piece.amax(1)


def low_high(x: torch.Tensor, low: float | None = None) -> tuple[float, float]:
    """Lowest (if it is not known) and highest of all elements, NaN where there is one; what numpy
    can read it does in half of torch's time."""
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        array = x.numpy()
        return float(array.min()) if low is None else low, float(array.max())
    return float(x.amin()) if low is None else low, float(x.amax())


def finite_ends(low: torch.Tensor, high: torch.Tensor) -> tuple[Floats, Floats]:
    """The ends as float32 arrays, -0 as 0. Raises DataError for NaN and Inf."""
    ends: Floats = torch.stack([low, high]).cpu().numpy() + np.float32(0)
    if not np.isfinite(ends).all():
        raise DataError("NaN or Inf (or a value beyond float32)")
    return ends[0], ends[1]


def as_tensor(values: NDArray[Any], axis: int | None) -> torch.Tensor:
    """An array [C] as float64 tensor: rank 0 per tensor, [C] per channel."""
    t = torch.from_numpy(values.astype(np.float64))
    return t.reshape(()) if axis is None else t


def check_mergeable(one: Measure, other: Measure) -> None:
    """Raise CalibrationError unless both are of one kind, axis, settings and channel count.

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


def check_state(state: Mapping[str, object], dtypes: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Copies of the arrays of `state`, or CalibrationError: wrong keys, dtypes, ranks, floats."""
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
) -> dict[str, NDArray[Any]]:
    """As `check_state`, for a state with "min" and "max": they agree in length and are in order."""
    arrays = check_state(state, dtypes)
    low, high = arrays["min"], arrays["max"]
    if len(low) != len(high) or (axis is None and len(low) > 1):
        raise CalibrationError("damaged statistics: wrong number of channels")
    if (low > high).any():
        raise CalibrationError("damaged statistics: a minimum above its maximum")
    return arrays
