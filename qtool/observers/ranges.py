"""From statistics to the range worth representing: float64 (lo, hi), rank 0 or [C]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.core.types import QType
from qtool.observers.histogram import Bins, Histogram
from qtool.observers.scale_and_zero_point import solve
from qtool.observers.statistic import RangeStatistic, as_tensor

Range = tuple[torch.Tensor, torch.Tensor]
Floats = NDArray[np.float64]

# Where `mse` looks: ratios of a candidate to the range it starts from, wide to narrow, so that
# of equals the widest wins. First 8 octaves down, in half octaves where the two ends must be tried
# in every combination, since each alone may lead to a poor optimum; then near the best of these.
_TOGETHER = np.exp2(-np.arange(0, 97) / 12)
_APART = tuple(r.ravel() for r in np.meshgrid(*2 * [np.exp2(-np.arange(0, 17) / 2)], indexing="ij"))
_NEARBY = tuple(np.exp2(np.arange(8, -9, -1) / fine) for fine in (16, 16, 64))
_BATCH_SIZE = 16  # candidates: times the bins, what the arrays of the search hold


def min_max(statistic: RangeStatistic) -> Range:
    """Everything that was seen, nothing clipped. Raises CalibrationError when empty."""
    return statistic.extent()


def percentile(histogram: Histogram, p: float = 99.999) -> Range:
    """Leave out 100 - p percent of the elements at either tail; p in percent, from 50 to 100.

    Linear within a bin, never outside the exact minimum and maximum. A tail is clipped only
    when it has elements on its own side of zero, and not beyond zero: after a ReLU the minimum
    stays. Raises CalibrationError when empty.
    """
    return _each(histogram, lambda bins: _percentile(bins, p))


def _percentile(bins: Bins, p: float) -> tuple[float, float]:
    left_out = bins.counts.sum() * (1 - p / 100)
    lo = min(_walk(bins.counts, bins.edges, left_out), 0.0)
    hi = max(-_walk(bins.counts[::-1], -bins.edges[::-1], left_out), 0.0)
    return min(max(lo, bins.low), bins.high), min(max(hi, bins.low), bins.high)


def _walk(counts: NDArray[np.int64], edges: Floats, elements: float) -> float:
    """Where so many elements lie below, each bin's being spread evenly over it."""
    total = np.cumsum(counts)
    i = int(np.searchsorted(total, elements, side="right"))
    inside = (elements - (total[i] - counts[i])) / counts[i]
    return float(edges[i] + (edges[i + 1] - edges[i]) * inside)


def mse(histogram: Histogram, qtype: QType, symmetric: bool) -> Range:
    """The range that `solve` turns into the smallest mean squared quantization error.

    The elements of a bin are taken as spread evenly over it and the error is integrated
    exactly, so it is right also where a quantization step is finer than a bin. Candidates: no
    clipping, and each end shrunk by up to 2**8, found to about 1 percent. Deterministic. Raises
    CalibrationError when empty.
    """
    return _each(histogram, lambda bins: _mse(bins, qtype, symmetric))


def _mse(bins: Bins, qtype: QType, symmetric: bool) -> tuple[float, float]:
    low, high = min(bins.low, 0.0), max(bins.high, 0.0)
    if symmetric:
        reach = max(-low, high)
        low, high = -reach, reach

    def best(lo: Floats, hi: Floats) -> tuple[float, float]:
        few = range(0, len(lo), _BATCH_SIZE)
        cut = [(lo[i : i + _BATCH_SIZE], hi[i : i + _BATCH_SIZE]) for i in few]
        i = int(np.argmin(np.concatenate([_errors(bins, *c, qtype, symmetric) for c in cut])))
        return float(lo[i]), float(hi[i])

    def scaled(lo: float, hi: float, down: Floats, up: Floats) -> tuple[float, float]:
        return best(np.maximum(lo * down, low), np.minimum(hi * up, high))

    if symmetric or low == 0 or high == 0:
        lo, hi = scaled(low, high, _TOGETHER, _TOGETHER)
        for ratios in _NEARBY:
            lo, hi = scaled(lo, hi, ratios, ratios)
    else:
        lo, hi = scaled(low, high, *_APART)
        for ratios in _NEARBY:
            same = np.ones_like(ratios)
            lo, hi = scaled(lo, hi, ratios, same)
            lo, hi = scaled(lo, hi, same, ratios)
    return max(lo, bins.low), min(hi, bins.high)


def _errors(bins: Bins, lo: Floats, hi: Floats, qtype: QType, symmetric: bool) -> Floats:
    """Summed squared quantization errors [K] under the ranges [lo[K], hi[K]].

    With one step of error e(x) = (x - rint(x))**2, the integral of e from 0 to u is
    r / 12 + (u - r)**3 / 3 with r = rint(u); beyond the end codes the error is a parabola.
    """
    params = solve(torch.from_numpy(lo), torch.from_numpy(hi), qtype, symmetric, axis=0)
    scale = params.scale.double().numpy()[:, None]
    zero = params.zero_point.double().numpy()[:, None]
    x = bins.edges
    inside = np.clip(x, (qtype.qmin - zero) * scale, (qtype.qmax - zero) * scale)
    steps = inside / scale
    whole = np.rint(steps)
    integral = scale**3 * (whole / 12 + (steps - whole) ** 3 / 3) + (x - inside) ** 3 / 3
    density = bins.counts / np.diff(x)
    # A plain sum, not a matrix product: the same on every machine and thread count.
    errors: Floats = (np.diff(integral, axis=1) * density).sum(axis=1)
    return errors


def _each(histogram: Histogram, of: Callable[[Bins], tuple[float, float]]) -> Range:
    """Apply a function of one channel to all of them."""
    ends = np.array([of(bins) for bins in histogram.channel_bins()])
    return as_tensor(ends[:, 0], histogram.axis), as_tensor(ends[:, 1], histogram.axis)
