"""The range whose codes tell most of a tensor's values: the least relative entropy.

After TensorRT's calibration (Migacz 2017): for each of many thresholds the distribution clipped
there is compared with what is left of it when it is cut into as many cells as there are codes. As
there, what is clipped counts in the last bin of the one and not in the other, so that clipping
costs something; unlike there, bins are grouped by the code that they round to, so that asymmetric
ranges and any number of bits are the same to it, and zeros count no more than their neighbours.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.core.types import QType
from qtool.observers.histogram import Bins, Histogram
from qtool.observers.ranges import Range
from qtool.observers.scale_and_zero_point import solve
from qtool.observers.statistic import as_tensor

Floats = NDArray[np.float64]

THRESHOLDS = np.exp2(-np.arange(0, 97) / 16)  # of the largest value: down to a 64th, 4 % apart


def entropy(histogram: Histogram, qtype: QType, symmetric: bool) -> Range:
    """The range with the least relative entropy, per tensor or per channel: float64.

    One threshold clips both sides of zero; of equals the widest wins. Raises CalibrationError when
    the histogram is empty.
    """
    ends = np.array([_best(bins, qtype, symmetric) for bins in histogram.channel_bins()])
    return as_tensor(ends[:, 0], histogram.axis), as_tensor(ends[:, 1], histogram.axis)


def _best(bins: Bins, qtype: QType, symmetric: bool) -> tuple[float, float]:
    reach = max(-bins.low, bins.high)
    if not reach > 0:
        return bins.low, bins.high
    bins = _without_zeros(bins)
    low, high = min(bins.low, 0.0), max(bins.high, 0.0)  # zero always has a code
    candidates = [(max(low, -reach * t), min(high, reach * t)) for t in map(float, THRESHOLDS)]
    losses = [_divergence(bins, lo, hi, qtype, symmetric) for lo, hi in candidates]
    return candidates[int(np.argmin(losses))]


def _without_zeros(bins: Bins) -> Bins:
    """The bin of zero as full as the fuller of its neighbours, at most. The zeros of a ReLU are
    rounded to themselves; spread over all bins of their code they would be the only thing that
    counts, and ask for steps as fine as a bin."""
    at = int(np.searchsorted(bins.edges, 0.0, side="right")) - 1
    beside = [bins.counts[i] for i in (at - 1, at + 1) if 0 <= i < len(bins.counts)]
    if not 0 <= at < len(bins.counts) or not any(beside):
        return bins
    counts = bins.counts.copy()
    counts[at] = min(counts[at], max(beside))
    return replace(bins, counts=counts)


def _divergence(bins: Bins, lo: float, hi: float, qtype: QType, symmetric: bool) -> float:
    """KL(P || Q): P the distribution with everything beyond the range at its ends, Q the inside
    of it with the mass of each code spread evenly over the bins that have any."""
    middle = (bins.edges[:-1] + bins.edges[1:]) / 2
    inside = (bins.edges[1:] > lo) & (bins.edges[:-1] < hi)
    inner = bins.counts[inside].astype(np.float64)
    if not inner.any():
        return float("inf")
    clipped = inner.copy()
    first = int(np.argmax(inside))
    clipped[0] += bins.counts[:first].sum()
    clipped[-1] += bins.counts[first + len(inner) :].sum()
    params = solve(torch.tensor(lo).double(), torch.tensor(hi).double(), qtype, symmetric, None)
    codes = np.rint(middle[inside] / float(params.scale)) + int(params.zero_point)
    codes = np.clip(codes, qtype.qmin, qtype.qmax).astype(np.int64) - qtype.qmin
    held = inner > 0
    mass = np.bincount(codes, inner)
    places = np.bincount(codes, held)
    spread = np.where(held, mass[codes] / np.maximum(places[codes], 1), 0.0)
    return _relative(clipped / clipped.sum(), spread / spread.sum())


def _relative(p: Floats, q: Floats) -> float:
    """Relative entropy in nats; mass where the other has none costs as one part in a million."""
    some = p > 0
    return float((p[some] * np.log(p[some] / np.maximum(q[some], 1e-6 / len(q)))).sum())
