"""Range estimates from statistics: float64 (low, high), rank 0 or [C]."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.core.types import QType
from qtool.observers.histogram import Bins, Histogram
from qtool.observers.scale_and_zero_point import solve
from qtool.observers.statistic import as_tensor

Range = tuple[torch.Tensor, torch.Tensor]
Floats = NDArray[np.float64]
P = ParamSpec("P")

# Candidates of `mse`: ratios to the initial range, wide to narrow, so that of equals the widest
# wins. First 8 octaves down, in half octaves where every combination of the two ends must be tried,
# since each end alone may lead to a poor optimum; then near the best of these.
_BOTH_ENDS = np.exp2(-np.arange(0, 97) / 12)
_HALF_OCTAVES = np.exp2(-np.arange(0, 17) / 2)
_COMBINATIONS = tuple(r.ravel() for r in np.meshgrid(*2 * [_HALF_OCTAVES], indexing="ij"))
_NEARBY = tuple(np.exp2(np.arange(8, -9, -1) / fine) for fine in (16, 16, 64))
_BATCH_SIZE = 16  # candidates per array of [candidates, bins]


def by_channel(
    estimate: Callable[Concatenate[Bins, P], tuple[float, float]],
) -> Callable[Concatenate[Histogram, P], Range]:
    """Decorate an estimate of one channel to return the ranges of all channels of a histogram.

    It raises CalibrationError when the histogram is empty.
    """

    @wraps(estimate)
    def ranges(histogram: Histogram, /, *args: P.args, **kwargs: P.kwargs) -> Range:
        ends = np.array([estimate(bins, *args, **kwargs) for bins in histogram.channel_bins()])
        return as_tensor(ends[:, 0], histogram.axis), as_tensor(ends[:, 1], histogram.axis)

    return ranges


@by_channel
def percentile(bins: Bins, p: float = 99.999) -> tuple[float, float]:
    """Return the range without 100 - p percent of the elements at either tail.

    Linear within a bin, never outside the exact minimum and maximum. A tail is clipped only if it
    has elements on its side of zero, and not beyond zero: after a ReLU the minimum stays.

    Args:
        bins: histogram of the tensor or one of its channels.
        p: percentage, from 50 to 100.
    """
    clipped = bins.counts.sum() * (1 - p / 100)
    lo = min(_walk(bins.counts, bins.edges, clipped), 0.0)
    hi = max(-_walk(bins.counts[::-1], -bins.edges[::-1], clipped), 0.0)
    return min(max(lo, bins.low), bins.high), min(max(hi, bins.low), bins.high)


def _walk(counts: NDArray[np.int64], edges: Floats, elements: float) -> float:
    """Return the value with this many elements below, interpolated within its bin."""
    total = np.cumsum(counts)
    i = int(np.searchsorted(total, elements, side="right"))
    inside = (elements - (total[i] - counts[i])) / counts[i]
    return float(edges[i] + (edges[i + 1] - edges[i]) * inside)


@by_channel
def mse(bins: Bins, qtype: QType, symmetric: bool) -> tuple[float, float]:
    """Return the range that `solve` turns into the smallest mean squared quantization error.

    Elements count as spread evenly over their bin and the error is integrated exactly, so it is
    right also where a quantization step is finer than a bin. Candidates: no clipping, and each end
    shrunk by up to 2**8, to about 1 percent. Deterministic.
    """
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
        lo, hi = scaled(low, high, _BOTH_ENDS, _BOTH_ENDS)
        for ratios in _NEARBY:
            lo, hi = scaled(lo, hi, ratios, ratios)
    else:
        lo, hi = scaled(low, high, *_COMBINATIONS)
        for ratios in _NEARBY:
            same = np.ones_like(ratios)
            lo, hi = scaled(lo, hi, ratios, same)
            lo, hi = scaled(lo, hi, same, ratios)
    return max(lo, bins.low), min(hi, bins.high)


def _errors(bins: Bins, lo: Floats, hi: Floats, qtype: QType, symmetric: bool) -> Floats:
    """Return the summed squared quantization errors [K] for the ranges [lo[K], hi[K]].

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
