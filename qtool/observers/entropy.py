"""The `entropy` observer: the range with the least Kullback-Leibler divergence.

After TensorRT's calibration (Migacz 2017): for each of many thresholds, the clipped distribution is
compared with its quantized form. As there, clipped elements count in the last bin of the first and
not in the second, so that clipping costs something. Unlike there, bins are grouped by the code that
they round to, which supports asymmetric ranges and any number of bits, and zeros count no more than
their neighbours.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from qtool.core.types import QType
from qtool.observers.histogram import Bins
from qtool.observers.ranges import by_channel, solve

Floats = NDArray[np.float64]

THRESHOLDS = np.exp2(-np.arange(0, 97) / 16)  # of the largest value: to a 64th, by 4 %


@by_channel
def entropy(bins: Bins, qtype: QType, symmetric: bool) -> tuple[float, float]:
    """Return the range with the least divergence. One threshold clips both sides of zero; of equals
    the widest wins."""
    reach = max(-bins.low, bins.high)
    if not reach > 0:
        return bins.low, bins.high
    bins = _without_zeros(bins)
    low, high = min(bins.low, 0.0), max(bins.high, 0.0)  # zero always has a code
    candidates = [(max(low, -reach * t), min(high, reach * t)) for t in map(float, THRESHOLDS)]
    losses = [_divergence(bins, lo, hi, qtype, symmetric) for lo, hi in candidates]
    return candidates[int(np.argmin(losses))]


def _without_zeros(bins: Bins) -> Bins:
    """Limit the count of the bin of zero to that of its fuller neighbour.

    The zeros of a ReLU are exact. Spread over all bins of their code they would dominate the
    divergence, and demand steps as fine as a bin.
    """
    at = int(np.searchsorted(bins.edges, 0.0, side="right")) - 1
    neighbours = [bins.counts[i] for i in (at - 1, at + 1) if 0 <= i < len(bins.counts)]
    if not 0 <= at < len(bins.counts) or not any(neighbours):
        return bins
    counts = bins.counts.copy()
    counts[at] = min(counts[at], max(neighbours))
    return replace(bins, counts=counts)


def _divergence(bins: Bins, lo: float, hi: float, qtype: QType, symmetric: bool) -> float:
    """Return KL(P || Q): P has everything beyond the range at its ends, Q only the inside, with the
    mass of each code spread evenly over its bins that are not empty."""
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
    occupied = inner > 0
    mass = np.bincount(codes, inner)
    bin_counts = np.bincount(codes, occupied)
    spread = np.where(occupied, mass[codes] / np.maximum(bin_counts[codes], 1), 0.0)
    return _relative(clipped / clipped.sum(), spread / spread.sum())


def _relative(p: Floats, q: Floats) -> float:
    """Return the divergence in nats; an empty bin of q counts as one part in a million."""
    some = p > 0
    return float((p[some] * np.log(p[some] / np.maximum(q[some], 1e-6 / len(q)))).sum())
