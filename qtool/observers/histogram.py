"""A histogram whose final content depends on the values alone, never on how they arrived."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from math import gcd, ldexp, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.core.errors import CalibrationError
from qtool.observers.statistic import (
    CHUNK,
    State,
    Statistic,
    as_tensor,
    channel_count,
    check_mergeable,
    check_range_state,
    chunk_ends,
    chunks,
    finite_ends,
    low_high,
)

# Quantization scales are at least 2**-60: bins a million times finer than that tell nothing.
_MIN_EXPONENT = -80

_MIN_COUNTED = 1024  # elements of a large sample, at least
_MIN_STRIDE = 4  # of so many one is counted, at least: a few large samples need their tails, too
_RUN = 16  # neighbours counted together: a line of memory is read at once
_INT16 = torch.iinfo(torch.int16).max
_COUNTERS = 1 << 20  # counters of the channels counted together: 8 MiB of int64

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
    """One channel: `counts` int64 [n] of the elements in [edge, next edge), edges float64 [n+1]."""

    counts: NDArray[np.int64]
    edges: NDArray[np.float64]
    low: float  # the exact lowest and highest element
    high: float


class Histogram:
    """Counts in bins [i * 2**k, (i+1) * 2**k), with exact minimum and maximum; per channel too.

    k is, for each channel, the smallest exponent (but at least -80) for which the observed
    range, extended to include 0, spans at most `bins` widths. A value on the top edge of that
    span opens one bin more, so [0, 1] is cut into `bins` whole widths. When the range grows, k
    grows and aligned neighbours are added up, which is exact: counts, k, minimum and maximum
    follow from the multiset of values, whatever the batches, their order and the merging. Memory
    is constant: `bins` + 1 int64 per channel.

    The index floor(x * 2**-k) is exact in float32: scaling by a power of two never rounds, except
    a negative value to -0 when k > 0, where float64 is used. (A CPU told to flush denormals
    counts subnormal values as zeros.)
    """

    def __init__(self, axis: int | None, *, bins: int = 2048) -> None:
        self.axis = axis
        self.bins = bins
        self.low = np.zeros(0, np.float32)
        self.high = np.zeros(0, np.float32)
        self.exponent = np.zeros(0, np.int64)
        self.first = np.zeros(0, np.int64)  # the bin index i of counts[:, 0]
        self.counts = np.zeros((0, bins + 1), np.int64)

    @property
    def channels(self) -> int:
        return self.low.size

    @property
    def settings(self) -> Mapping[str, float]:
        return {"bins": self.bins}

    @property
    def empty(self) -> bool:
        return self.channels == 0

    def update(self, x: torch.Tensor) -> None:
        channels = channel_count(x, self.axis, self.channels)
        if channels == 0:
            return
        if self.axis is None and self._count_in_range((p, 1) for _, p in chunks(x, None, 1)):
            return
        seen = self._empty_copy(channels)
        rows = max(1, _COUNTERS // (self.bins + 1))
        for start, piece in chunks(x, self.axis, rows):  # once: memory is what costs time here
            block = slice(start, start + piece.shape[0])
            low, high = finite_ends(*chunk_ends(piece))
            seen._widen(low, high, block)
            seen.counts[block] += seen._count(piece, block, bool((low < 0).any()))
        self.merge(seen)

    def update_subsampled(self, *batches: torch.Tensor, clamped: bool = False) -> None:
        """Takes batches whose samples lie along the first dimension, per tensor: the extremes of
        all elements, and counts of some of them where samples are large. `clamped`: no element lies
        below zero, so that the lowest is not looked for once there was a zero.

        Which ones is told by their places in the sample alone, so that the state still follows
        from the multiset of samples: every `step`-th run of neighbours. The step has no factor in
        common with any size of the sample: it meets every channel, row and column alike.
        """
        if self.axis is not None:
            for x in batches:
                self.update(x)
            return
        for x in batches:
            channel_count(x, None, self.channels)
        filled = [x.detach() for x in batches if x.numel()]
        if not filled or self._count_in_range(
            chain.from_iterable(map(_chunks_and_stride, filled)), clamped
        ):
            return
        seen = self._empty_copy(1)
        for piece, step in chain.from_iterable(map(_chunks_and_stride, filled)):
            low, high = finite_ends(*chunk_ends(piece.reshape(1, -1)))
            seen._widen(low, high)
            some = (piece if step == 1 else _runs(piece, step)).reshape(1, -1)
            seen.counts += seen._count(some, slice(None), bool((low < 0).any()))
        self.merge(seen)

    def _count_in_range(
        self, parts: Iterable[tuple[torch.Tensor, int]], clamped: bool = False
    ) -> bool:
        """Counts parts, of each every so manieth run, that lie within the range of now, as most do,
        without moving the grid; False, and nothing is changed, where one does not (or holds NaN).

        Small ones are counted together, since a count costs as much for any number.
        """
        if self.empty:
            return False
        least, most = float(self.low[0]), float(self.high[0])
        total: torch.Tensor | int = 0
        waiting: list[torch.Tensor] = []
        for piece, step in parts:
            low, high = low_high(piece, 0.0 if clamped and least == 0 else None)
            if not (least <= low and high <= most):
                return False
            some = piece if step == 1 else _runs(piece, step)
            waiting.append(self._bin_indices_of_channel(some, low < 0).reshape(-1))
            if sum(map(len, waiting)) >= CHUNK:
                total, waiting = total + self._count_indices(waiting), []
        total = total + self._count_indices(waiting) if waiting else total
        assert isinstance(total, torch.Tensor)
        self.counts[0] += total.cpu().numpy()
        return True

    def _count_indices(self, codes: list[torch.Tensor]) -> torch.Tensor:
        together = codes[0] if len(codes) == 1 else torch.cat(codes)
        return torch.bincount(together, minlength=self.bins + 1)

    def _empty_copy(self, channels: int) -> Histogram:
        """The own range without counts: takes a batch apart, since a bad value may come last."""
        new = Histogram(self.axis, bins=self.bins)
        if self.empty:
            nothing = np.full(channels, np.inf, np.float32)
            new._widen(nothing, -nothing)
            return new
        new.low, new.high = self.low.copy(), self.high.copy()
        new.exponent, new.first = self.exponent.copy(), self.first.copy()
        new.counts = np.zeros_like(self.counts)
        return new

    def _count(self, piece: torch.Tensor, block: slice, negative: bool) -> Ints:
        """Counts of `piece` [c, n], the channels `block`, on the grid of now: int64 [c, N+1].

        torch.bincount was the fastest exact counter of those measured (numpy's, scatter_add_,
        histc, sorting), of int16 more than of int32, in pieces that stay in the cache.
        """
        counters = (self.bins + 1) * piece.shape[0]
        flat = torch.bincount(
            self._bin_indices(piece, block, negative).reshape(-1), minlength=counters
        )
        counts: Ints = flat.cpu().numpy().reshape(piece.shape[0], self.bins + 1)
        return counts

    def _bin_indices(self, piece: torch.Tensor, block: slice, negative: bool) -> torch.Tensor:
        """The counter of every element: those of a channel behind those of the one before."""
        if self.channels == 1:
            return self._bin_indices_of_channel(piece, negative)
        exponent, first = self.exponent[block], self.first[block]
        if negative and (exponent > 0).any():
            piece = piece.double()
        index = piece * _column(np.ldexp(1.0, -exponent), piece)
        if negative:  # else truncation floors
            index = index.floor_()
        counters = len(first) * (self.bins + 1)
        codes = index.to(torch.int16 if counters <= _INT16 else torch.int32)
        base = np.arange(len(first)) * (self.bins + 1) - first
        if base.any():
            codes += _column(base, codes)
        return codes

    def _bin_indices_of_channel(self, piece: torch.Tensor, negative: bool) -> torch.Tensor:
        """The same where all is one channel, as for nearly every batch: in plain numbers."""
        exponent, first = int(self.exponent[0]), int(self.first[0])
        if negative and exponent > 0:
            piece = piece.double()
        index = piece * ldexp(1.0, -exponent)
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
        """Extend the range of the channels `block` to [low, high], their counts onto its grid."""
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
        moved = (self.exponent != old_exponent) | (self.first != old_first)
        for channel in np.flatnonzero(moved):
            counts = self.counts[channel].copy()
            self.counts[channel] = 0
            self._add(channel, counts, old_exponent[channel], old_first[channel])

    def _add(self, channel: np.intp, counts: Ints, exponent: np.int64, first: np.int64) -> None:
        """Add counts on a grid as fine as the own one or finer."""
        used = np.flatnonzero(counts)
        shift = min(self.exponent[channel] - exponent, 63)
        np.add.at(
            self.counts[channel],
            ((first + used) >> shift) - self.first[channel],
            counts[used],
        )

    def channel_bins(self) -> Iterator[Bins]:
        """The channels in order. Raises CalibrationError when empty."""
        if self.empty:
            raise CalibrationError("no data was seen")
        _, _, used = _grid(self.low, self.high, self.bins)
        for c in range(self.channels):
            edges = np.ldexp(self.first[c] + np.arange(used[c] + 1.0), self.exponent[c])
            counts = self.counts[c, : used[c]].copy()
            ends = np.array([self.low[c], self.high[c]])
            at = _index(ends, self.exponent[c]) - self.first[c]
            counts[at] = np.maximum(counts[at], 1)  # seen, even where not counted
            yield Bins(counts, edges, float(self.low[c]), float(self.high[c]))

    def extent(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.empty:
            raise CalibrationError("no data was seen")
        return as_tensor(self.low, self.axis), as_tensor(self.high, self.axis)

    def state(self) -> State:
        """`min`, `max` float32 [C]; `exponent`, `total` int64 [C]; `counts` int64 [sum of spans].

        `counts` holds, channel after channel, the bins from that of min(minimum, 0) to that of
        max(maximum, 0); `total` their sum.
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
        cls, state: Mapping[str, NDArray[Any]], axis: int | None, *, bins: int = 2048
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


@lru_cache
def _stride(sizes: tuple[int, ...]) -> int:
    """Every how manieth run of a sample of these sizes is counted."""
    least = min(prod(sizes) // _MIN_COUNTED, _MIN_STRIDE)
    if least < 2:
        return 1
    return next(k for k in count(least) if all(gcd(k, size) == 1 for size in sizes))


def _chunks_and_stride(x: torch.Tensor) -> Iterator[tuple[torch.Tensor, int]]:
    """A batch in parts, and every how manieth run of them is counted."""
    step = _stride(tuple(x.shape[1:]))
    if step == 1:
        return ((p, 1) for _, p in chunks(x, None, 1))
    return ((p, step) for p in _cache_sized(_samples(x), step))


def _samples(x: torch.Tensor) -> torch.Tensor:
    """[samples, elements], those of a sample in the order of memory: a view of what is dense."""
    if x.is_contiguous():
        return x.flatten(1)
    order = sorted(range(1, x.dim()), key=lambda d: (-x.stride()[d], d))
    return x.permute(0, *order).flatten(1)


def _cache_sized(x: torch.Tensor, step: int) -> Iterator[torch.Tensor]:
    """A matrix in parts that stay in the cache: some rows, or some columns of one, from a multiple
    of `step` runs on."""
    count = max(1, CHUNK // x.shape[1])
    width = max(1, CHUNK // (step * _RUN)) * step * _RUN
    for rows in x.split(count) if len(x) > count else (x,):
        yield from rows.split(width, 1) if x.shape[1] > CHUNK else (rows,)


def _runs(rows: torch.Tensor, step: int) -> torch.Tensor:
    """The counted elements of a part, float32: [rows, runs, _RUN]."""
    whole = rows.shape[1] // _RUN * _RUN
    runs: torch.Tensor = rows[:, :whole].unflatten(1, (-1, _RUN))
    return runs[:, ::step].float()


def _index(x: Floats, exponent: Ints | np.int64) -> Ints:
    index: Ints = np.floor(np.ldexp(x.astype(np.float64), -exponent)).astype(np.int64)
    return index


def _grid(low: Floats, high: Floats, bins: int) -> tuple[Ints, Ints, Ints]:
    """Exponent, first bin and number of bins [C] of ranges: the one place that decides them."""
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    span = high.astype(np.float64) - low
    exponent = np.frexp(span)[1].astype(np.int64) - (bins + 1).bit_length() - 2  # too small yet
    exponent = np.maximum(np.where(span > 0, exponent, _MIN_EXPONENT), _MIN_EXPONENT)
    while (over := _index(high, exponent) - _index(low, exponent) > bins).any():
        exponent = exponent + over
    first = _index(low, exponent)
    return exponent, first, _index(high, exponent) - first + 1


def _column(values: NDArray[Any], like: torch.Tensor) -> torch.Tensor | float:
    """[c] as a [c, 1] tensor of `like`'s dtype and device; one value as a plain number."""
    if values.size == 1:
        number: float = values.item()
        return number
    return torch.from_numpy(values).to(like.device, like.dtype)[:, None]
