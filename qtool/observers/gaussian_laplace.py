"""Ranges that clip where an ideal distribution is best clipped: `gaussian` and `laplace`.

After analytical clipping (ACIQ; Banner, Nahshan and Soudry 2019): noise is what is cut off plus
step^2 / 12 inside, and for a bell of known width the threshold with the least of it follows from
the number of codes. Unlike there, the width is measured on the elements themselves: around their
mean, or, where all lie on one side of zero (behind a ReLU), around zero and without the zeros,
since those are rounded to themselves; the threshold is solved for and not looked up, and no end is
put where no element was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import erfc, exp, pi, sqrt

import numpy as np

from qtool.core.types import QType
from qtool.observers.histogram import Bins, Histogram
from qtool.observers.ranges import Range
from qtool.observers.statistic import as_tensor

BISECTIONS = 60  # of the interval that the threshold lies in, which is a float's precision
MAX_THRESHOLD = 64.0  # in widths of the bell; more than any number of codes asks for


def gaussian(histogram: Histogram, qtype: QType, symmetric: bool) -> Range:
    """The range for elements of a normal distribution, per tensor or per channel: float64.

    Raises CalibrationError when the histogram is empty.
    """
    return _clipped(histogram, qtype, symmetric, _gaussian_cut, power=2)


def laplace(histogram: Histogram, qtype: QType, symmetric: bool) -> Range:
    """The range for elements of a Laplace distribution; see `gaussian`."""
    return _clipped(histogram, qtype, symmetric, _laplace_cut, power=1)


Cut = Callable[[float], float]


def _gaussian_cut(t: float) -> float:
    """How fast the squared error of what lies beyond a threshold falls: d/dt of
    2 * integral from t of (x - t)^2 p(x), p of width 1, with its sign turned."""
    return 4 * (exp(-t * t / 2) / sqrt(2 * pi) - t * erfc(t / sqrt(2)) / 2)


def _laplace_cut(t: float) -> float:
    return 2 * exp(-t)


@cache
def threshold(cut: Cut, steps: float) -> float:
    """Where to clip, in widths of the bell: the t at which what more range saves at its ends is
    what it costs inside.

    Args:
        cut: one of the two above. steps: between zero and the threshold.
    """
    low, high = 0.0, MAX_THRESHOLD
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        more = cut(middle) > middle / (6 * steps * steps)  # d/dt of (t / steps)^2 / 12
        low, high = (middle, high) if more else (low, middle)
    return (low + high) / 2


def _clipped(histogram: Histogram, qtype: QType, symmetric: bool, cut: Cut, power: int) -> Range:
    ends = np.array(
        [_ends(bins, qtype, symmetric, cut, power) for bins in histogram.channel_bins()]
    )
    return as_tensor(ends[:, 0], histogram.axis), as_tensor(ends[:, 1], histogram.axis)


def _ends(bins: Bins, qtype: QType, symmetric: bool, cut: Cut, power: int) -> tuple[float, float]:
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
