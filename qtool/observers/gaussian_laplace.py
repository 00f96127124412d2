"""The observers `gaussian` and `laplace`: the optimal clipping range of an ideal distribution.

After analytical clipping (ACIQ; Banner, Nahshan and Soudry 2019): the noise is the clipping error
plus step^2 / 12 inside, and for a distribution of known width the best threshold follows from the
number of codes. Unlike there, the width is measured around the mean of the elements, or, where all
are on one side of zero (behind a ReLU), around zero and without the zeros, since those are exact;
the threshold is solved for and not looked up, and never exceeds the extremes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import erfc, exp, pi, sqrt

import numpy as np

from qtool.core.types import QType
from qtool.observers.histogram import Bins
from qtool.observers.ranges import by_channel

BISECTIONS = 60  # of the interval of the threshold, down to float precision
MAX_THRESHOLD = 64.0  # in widths of the distribution; more than any number of codes needs

Cut = Callable[[float], float]


def _gaussian_cut(t: float) -> float:
    """Return -d/dt of the clipping error 2 * integral from t of (x - t)^2 p(x), p of width 1."""
    return 4 * (exp(-t * t / 2) / sqrt(2 * pi) - t * erfc(t / sqrt(2)) / 2)


def _laplace_cut(t: float) -> float:
    return 2 * exp(-t)


@cache
def threshold(cut: Cut, steps: float) -> float:
    """Return the best threshold in widths of the distribution.

    There, the gain of more range at its ends equals the cost of coarser steps inside.

    Args:
        cut: -d/dt of the clipping error of the distribution.
        steps: number of quantization steps between zero and the threshold.
    """
    low, high = 0.0, MAX_THRESHOLD
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        more = cut(middle) > middle / (6 * steps * steps)  # d/dt of (t / steps)^2 / 12
        low, high = (middle, high) if more else (low, middle)
    return (low + high) / 2


@by_channel
def gaussian(bins: Bins, qtype: QType, symmetric: bool) -> tuple[float, float]:
    """Return the range for normally distributed elements."""
    return _clipped(bins, qtype, symmetric, _gaussian_cut, power=2)


@by_channel
def laplace(bins: Bins, qtype: QType, symmetric: bool) -> tuple[float, float]:
    """Return the range for Laplace distributed elements."""
    return _clipped(bins, qtype, symmetric, _laplace_cut, power=1)


def _clipped(
    bins: Bins, qtype: QType, symmetric: bool, cut: Cut, power: int
) -> tuple[float, float]:
    middles = (bins.edges[:-1] + bins.edges[1:]) / 2
    one_sided = bins.low >= 0 or bins.high <= 0
    zero = (bins.edges[:-1] <= 0) & (bins.edges[1:] > 0)
    counts = np.where(zero, 0, bins.counts) if one_sided else bins.counts
    if not counts.any():
        return bins.low, bins.high
    centre = 0.0 if one_sided or symmetric else float(np.average(middles, weights=counts))
    spread = np.average(np.abs(middles - centre) ** power, weights=counts)
    half = qtype.levels if one_sided and not symmetric else qtype.levels / 2
    reach = float(spread ** (1 / power)) * threshold(cut, half)
    return max(bins.low, centre - reach), min(bins.high, centre + reach)
