"""Ranges from statistics, float64 (low, high), rank 0 or [C]; scale and zero point of a range."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.core.errors import CalibrationError
from qtool.core.quant_params import QuantParams
from qtool.core.types import QType
from qtool.observers.histogram import Bins, Histogram
from qtool.observers.statistic import as_tensor

MIN_SCALE = 2.0**-60  # the product of two scales, a bias's scale, is still a normal float32
_MAX = torch.finfo(torch.float32).max


def solve(
    lo: torch.Tensor, hi: torch.Tensor, qtype: QType, symmetric: bool, axis: int | None
) -> QuantParams:
    """Return the parameters that represent [lo, hi], extended to include 0, with `qtype`'s codes.

    Asymmetric: the end codes represent the ends, up to the rounding of the zero point (half to
    even; lo >= 0 gives qmin exactly). Symmetric: the zero point is 0 (the middle code of an
    unsigned type), and the highest code represents the larger magnitude.

    Computed in float64; the scale is rounded to the nearest float32 last. A scale is at least
    2**-60, 1 for the range [0, 0], and never so large that a code dequantizes to Inf: ends near
    or beyond float32's largest value are clipped.

    Args:
        lo: lowest values, rank 0 for `axis` None, else [C].
        hi: highest values, like `lo`.
        qtype: type of the codes.
        symmetric: see above.
        axis: axis of the channels, or None.

    Raises:
        CalibrationError: NaN, Inf, lo > hi or ranks that do not fit `axis`.
    """
    _check(lo, hi, axis)
    lo = lo.double().clamp(-_MAX, 0)
    hi = hi.double().clamp(0, _MAX)
    if symmetric:
        middle = 0 if qtype.signed else (qtype.qmin + qtype.qmax + 1) // 2
        span = _usable(torch.maximum(-lo, hi), qtype.qmax - middle)
        scale, zero = span / (qtype.qmax - middle), torch.full_like(span, middle)
    else:
        span = _usable(hi - lo, qtype.levels)
        scale, zero = span / qtype.levels, torch.round(qtype.qmin - lo * qtype.levels / span)
        zero = zero.clamp(qtype.qmin, qtype.qmax)
    scale = torch.minimum(scale.float(), _largest(zero, qtype))
    return QuantParams(qtype, scale, zero.long(), axis)


def _check(lo: torch.Tensor, hi: torch.Tensor, axis: int | None) -> None:
    rank = 0 if axis is None else 1
    if lo.dim() != rank or hi.shape != lo.shape:
        raise CalibrationError(
            f"a range of shapes {tuple(lo.shape)} and {tuple(hi.shape)} for axis {axis}"
        )
    if not (lo.isfinite() & hi.isfinite()).all():
        raise CalibrationError("a range with NaN or Inf")
    if (lo > hi).any():
        raise CalibrationError("a range whose low end is above its high end")


def _usable(span: torch.Tensor, steps: int) -> torch.Tensor:
    """Return `span`, widened where this number of steps would make the scale too small."""
    return torch.where(span == 0, steps, span.clamp(min=MIN_SCALE * steps))


def _largest(zero: torch.Tensor, qtype: QType) -> torch.Tensor:
    """Return the largest float32 scales with which all codes dequantize to finite values."""
    steps = torch.maximum(zero - qtype.qmin, qtype.qmax - zero).float().double()
    limit = (_MAX / steps).float()
    too_large = limit.double() * steps > _MAX
    down = torch.nextafter(limit, torch.zeros_like(limit))
    return torch.where(too_large, down, limit)


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
