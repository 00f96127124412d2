"""A histogram that depends only on the values, not on batches or their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import ldexp

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.core.errors import CalibrationError
from qtool.core.types import Array
from qtool.observers.statistic import (
    CHUNK,
    Extremes,
    State,
    Statistic,
    channel_count,
    check_mergeable,
    check_range_state,
    chunk_ends,
    chunks,
    finite_ends,
    low_high,
)
from qtool.observers.subsampling import chunks_and_stride, counted_elements

# Quantization scales are at least 2**-60: bins a million times finer carry no information.
_MIN_EXPONENT = -80

_INT16 = torch.iinfo(torch.int16).max
_COUNTERS = 1 << 20  # counters in one bincount: 8 MiB of int64

_DTYPES = {
    "min": np.float32,
    "max": np.float32,
    "exponent": np.int64,
    "total": np.int64,
    "counts": np.int64,
}

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Bins:
    """One channel of a histogram.

    Attributes:
        counts: number of elements in [edge, next edge), int64 [n].
        edges: float64 [n + 1].
        low: exact lowest element.
        high: exact highest element.
    """

    counts: NDArray[np.int64]
    edges: NDArray[np.float64]
    low: float
    high: float


class Histogram(Extremes):
    """Histogram with bins [i * 2**k, (i+1) * 2**k), and exact minimum and maximum.

    For each channel, k is the smallest exponent (but at least -80) for which the observed range,
    extended to include 0, spans at most `bins` widths. A value on the top edge of that span opens
    one more bin, so [0, 1] has `bins` whole widths. When the range grows, k grows and aligned
    neighbours are added up, which is exact: counts, k, minimum and maximum depend on the multiset
    of values, not on batches, their order or merging. Memory is constant: `bins` + 1 int64 per
    channel.

    The index floor(x * 2**-k) is exact in float32: scaling by a power of two never rounds, except
    a negative value to -0 when k > 0, where float64 is used. (A CPU set to flush denormals
    counts subnormal values as zeros.)

    Attributes:
        axis: channel axis; None for one histogram per tensor.
        bins: number of whole bins.
        low: minimum per channel, float32 [C].
        high: maximum per channel, float32 [C].
        exponent: k per channel, int64 [C].
        first: index i of the first bin per channel, int64 [C].
        counts: int64 [C, bins + 1].
    """

    def __init__(self, axis: int | None, *, bins: int = 2048) -> None:
        self.axis = axis
        self.bins = bins
        self.low = np.zeros(0, np.float32)
        self.high = np.zeros(0, np.float32)
        self.exponent = np.zeros(0, np.int64)
        self.first = np.zeros(0, np.int64)
        self.counts = np.zeros((0, bins + 1), np.int64)

    @property
    def settings(self) -> Mapping[str, float]:
        return {"bins": self.bins}

    def update(self, x: torch.Tensor) -> None:
        channels = channel_count(x, self.axis, self.channels)
        if channels == 0:
            return
        if self.axis is None and self._count_in_range((p, 1) for _, p in chunks(x, None, 1)):
            return
        added = self._empty_copy(channels)
        rows = max(1, _COUNTERS // (self.bins + 1))
        for start, chunk in chunks(x, self.axis, rows):  # one pass, as memory bandwidth limits
            block = slice(start, start + chunk.shape[0])
            low, high = finite_ends(*chunk_ends(chunk))
            added._widen(low, high, block)
            added.counts[block] += added._count(chunk, block, bool((low < 0).any()))
        self.merge(added)

    def update_subsampled(self, *batches: torch.Tensor, clamped: bool = False) -> None:
        """Add batches with exact extremes, but count only some elements of large samples.

        Every n-th run of 16 consecutive elements of a sample is counted; the state still depends on
        the multiset of samples alone. n has no common factor with any size of the sample, so that
        every channel, row and column is covered equally. Statistics per channel count everything.

        Args:
            batches: samples along the first dimension.
            clamped: no element is negative, so that the minimum is known once it is zero.
        """
        if self.axis is not None:
            for x in batches:
                self.update(x)
            return
        for x in batches:
            channel_count(x, None, self.channels)
        filled = [x.detach() for x in batches if x.numel()]
        if not filled or self._count_in_range(
            chain.from_iterable(map(chunks_and_stride, filled)), clamped
        ):
            return
        added = self._empty_copy(1)
        for chunk, stride in chain.from_iterable(map(chunks_and_stride, filled)):
            low, high = finite_ends(*chunk_ends(chunk.reshape(1, -1)))
            added._widen(low, high)
            counted = counted_elements(chunk, stride).reshape(1, -1)
            added.counts += added._count(counted, slice(None), bool((low < 0).any()))
        self.merge(added)

    def _count_in_range(
        self, parts: Iterable[tuple[torch.Tensor, int]], clamped: bool = False
    ) -> bool:
        """Count (chunk, stride) pairs on the current grid, and return whether they fit its range.

        Changes nothing if an element is outside of the range, or NaN. Small chunks are counted
        together, since one bincount costs the same for any size.
        """
        if self.empty:
            return False
        lowest, highest = float(self.low[0]), float(self.high[0])
        total: torch.Tensor | int = 0
        pending: list[torch.Tensor] = []
        for chunk, stride in parts:
            low, high = low_high(chunk, 0.0 if clamped and lowest == 0 else None)
            if not (lowest <= low and high <= highest):
                return False
            counted = counted_elements(chunk, stride)
            pending.append(self._bin_indices_of_channel(counted, low < 0).reshape(-1))
            if sum(map(len, pending)) >= CHUNK:
                total, pending = total + self._count_indices(pending), []
        total = total + self._count_indices(pending) if pending else total
        assert isinstance(total, torch.Tensor)
        self.counts[0] += total.cpu().numpy()
        return True

    def _count_indices(self, codes: list[torch.Tensor]) -> torch.Tensor:
        indices = codes[0] if len(codes) == 1 else torch.cat(codes)
        return torch.bincount(indices, minlength=self.bins + 1)

    def _empty_copy(self, channels: int) -> Histogram:
        """Return a copy without counts, for a batch that may have an invalid value."""
        new = Histogram(self.axis, bins=self.bins)
        if self.empty:
            infinite = np.full(channels, np.inf, np.float32)
            new._widen(infinite, -infinite)
            return new
        new.low, new.high = self.low.copy(), self.high.copy()
        new.exponent, new.first = self.exponent.copy(), self.first.copy()
        new.counts = np.zeros_like(self.counts)
        return new

    def _count(self, chunk: torch.Tensor, block: slice, negative: bool) -> Ints:
        """Return the counts of `chunk` [c, n], the channels `block`: int64 [c, bins + 1].

        torch.bincount was the fastest exact counter measured (against numpy, scatter_add_, histc,
        sorting), with int16 faster than int32, in chunks that stay in the cache.
        """
        counters = (self.bins + 1) * chunk.shape[0]
        flat = torch.bincount(
            self._bin_indices(chunk, block, negative).reshape(-1), minlength=counters
        )
        return flat.cpu().numpy().reshape(chunk.shape[0], self.bins + 1)

    def _bin_indices(self, chunk: torch.Tensor, block: slice, negative: bool) -> torch.Tensor:
        """Return the counter of every element; each channel has its own block of counters."""
        if self.channels == 1:
            return self._bin_indices_of_channel(chunk, negative)
        exponent, first = self.exponent[block], self.first[block]
        if negative and (exponent > 0).any():
            chunk = chunk.double()
        index = chunk * _column(np.ldexp(1.0, -exponent), chunk)
        if negative:  # else truncation floors
            index = index.floor_()
        counters = len(first) * (self.bins + 1)
        codes = index.to(torch.int16 if counters <= _INT16 else torch.int32)
        base = np.arange(len(first)) * (self.bins + 1) - first
        if base.any():
            codes += _column(base, codes)
        return codes

    def _bin_indices_of_channel(self, chunk: torch.Tensor, negative: bool) -> torch.Tensor:
        """Return the bin index of every element of a single channel, without tensors of grids."""
        exponent, first = int(self.exponent[0]), int(self.first[0])
        if negative and exponent > 0:
            chunk = chunk.double()
        index = chunk * ldexp(1.0, -exponent)
        if negative:
            index = index.floor_()
        codes = index.to(torch.int16 if self.bins < _INT16 else torch.int32)
        return codes.sub_(first) if first else codes

    def merge(self, other: Statistic) -> None:
        check_mergeable(self, other)
        assert isinstance(other, Histogram)
        if other.empty:
            return
        self._widen(other.low, other.high)
        same = (self.exponent == other.exponent) & (self.first == other.first)
        self.counts[same] += other.counts[same]
        for channel in np.flatnonzero(~same):
            self._add(channel, other.counts[channel], other.exponent[channel], other.first[channel])

    def _widen(self, low: Floats, high: Floats, block: slice = slice(None)) -> None:
        """Extend the range of the channels `block` to [low, high] and regrid their counts."""
        if self.empty:
            self.counts = np.zeros((low.size, self.bins + 1), np.int64)
            self.low, self.high = low.copy(), high.copy()
            self.exponent, self.first, _ = _grid(low, high, self.bins)
            return
        if (self.low[block] <= low).all() and (high <= self.high[block]).all():
            return
        self.low[block] = np.minimum(self.low[block], low)
        self.high[block] = np.maximum(self.high[block], high)
        old_exponent, old_first = self.exponent.copy(), self.first.copy()
        exponent, first, _ = _grid(self.low[block], self.high[block], self.bins)
        self.exponent[block], self.first[block] = exponent, first
        changed = (self.exponent != old_exponent) | (self.first != old_first)
        for channel in np.flatnonzero(changed):
            counts = self.counts[channel].copy()
            self.counts[channel] = 0
            self._add(channel, counts, old_exponent[channel], old_first[channel])

    def _add(self, channel: np.intp, counts: Ints, exponent: np.int64, first: np.int64) -> None:
        """Add counts on a grid at least as fine as the current one."""
        used = np.flatnonzero(counts)
        shift = min(self.exponent[channel] - exponent, 63)
        np.add.at(
            self.counts[channel],
            ((first + used) >> shift) - self.first[channel],
            counts[used],
        )

    def channel_bins(self) -> Iterator[Bins]:
        """Yield the channels in order.

        Raises:
            CalibrationError: no data was observed.
        """
        if self.empty:
            raise CalibrationError("no data was observed")
        _, _, used = _grid(self.low, self.high, self.bins)
        for c in range(self.channels):
            edges = np.ldexp(self.first[c] + np.arange(used[c] + 1.0), self.exponent[c])
            counts = self.counts[c, : used[c]].copy()
            ends = np.array([self.low[c], self.high[c]])
            outer = _index(ends, self.exponent[c]) - self.first[c]
            counts[outer] = np.maximum(counts[outer], 1)  # observed, even if not counted
            yield Bins(counts, edges, float(self.low[c]), float(self.high[c]))

    def state(self) -> State:
        """Return `min`, `max` float32 [C]; `exponent`, `total` int64 [C]; `counts` int64.

        `counts` has, channel after channel, the bins from that of min(minimum, 0) to that of
        max(maximum, 0); `total` is their sum.
        """
        _, _, used = _grid(self.low, self.high, self.bins)
        return {
            "min": self.low.copy(),
            "max": self.high.copy(),
            "exponent": self.exponent.copy(),
            "total": self.counts.sum(1),
            "counts": self.counts[np.arange(self.bins + 1) < used[:, None]],
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Array], axis: int | None, *, bins: int = 2048
    ) -> Histogram:
        arrays = check_range_state(state, _DTYPES, axis)
        low, high, counts = arrays["min"], arrays["max"], arrays["counts"]
        exponent, first, used = _grid(low, high, bins)
        if not np.array_equal(arrays["exponent"], exponent):
            raise CalibrationError("damaged statistics: 'exponent' does not fit min and max")
        if len(counts) != used.sum():
            raise CalibrationError("damaged statistics: 'counts' has the wrong length")
        if (counts < 0).any():
            raise CalibrationError("damaged statistics: a negative count")
        new = cls(axis, bins=bins)
        new.low, new.high, new.exponent, new.first = low, high, exponent, first
        new.counts = np.zeros((low.size, bins + 1), np.int64)
        new.counts[np.arange(bins + 1) < used[:, None]] = counts
        if not np.array_equal(new.counts.sum(1), arrays["total"]):
            raise CalibrationError("damaged statistics: 'counts' does not sum to 'total'")
        return new


def _index(x: Floats, exponent: Ints | np.int64) -> Ints:
    return np.floor(np.ldexp(x.astype(np.float64), -exponent)).astype(np.int64)


def _grid(low: Floats, high: Floats, bins: int) -> tuple[Ints, Ints, Ints]:
    """Return exponent, first bin and number of bins [C] of ranges."""
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    span = high.astype(np.float64) - low
    exponent = np.frexp(span)[1].astype(np.int64) - (bins + 1).bit_length() - 2  # a lower bound
    exponent = np.maximum(np.where(span > 0, exponent, _MIN_EXPONENT), _MIN_EXPONENT)
    while (over := _index(high, exponent) - _index(low, exponent) > bins).any():
        exponent = exponent + over
    first = _index(low, exponent)
    return exponent, first, _index(high, exponent) - first + 1


def _column(values: Array, like: torch.Tensor) -> torch.Tensor | float:
    """Return [c] as a [c, 1] tensor of `like`'s dtype and device; one value as a number."""
    if values.size == 1:
        number: float = values.item()
        return number
    return torch.from_numpy(values).to(like.device, like.dtype)[:, None]
