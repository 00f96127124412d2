"""By how much a metric drops, with its interval, and how many samples decide about a limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from qtool.core.types import Array
from qtool.metrics.intervals import exact_share_interval, paired_share_interval
from qtool.metrics.sample_ratios import student_deviations

GROUPS = 50
"""Of samples, for the jackknife: each is left out once."""
_MOST_SAMPLES = 2.0**14  # times those of the run: beyond it no number of samples is named

Ends = tuple[float, float]
Values = Callable[[Array], tuple[float, float]]
"""Indices of samples -> the metric of the float file and of the other one on these samples."""


@dataclass(frozen=True, eq=False)
class Drop:
    """The drop of a metric relative to the float file: positive if the other file is worse.

    Attributes:
        value: the drop on all samples.
        samples: number of samples.
        ends: both ends of the interval for a number of times as many samples: the drop is below
            the first, or above the second, with a probability of 1 - confidence each.
    """

    value: float
    samples: int
    ends: Callable[[float], Ends]

    def decides(self, limit: float, factor: float = 1.0) -> bool:
        """Return whether a limit is outside the interval of a number of times as many samples."""
        low, high = self.ends(factor)
        return low > limit or high <= limit

    def samples_needed(self, limit: float) -> int | None:
        """Return how many samples would decide if they were like these; None: no number would."""
        low, high = 1.0, 1.0
        while not self.decides(limit, high):
            if (high := 2 * high) > _MOST_SAMPLES:
                return None
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.decides(limit, middle) else (middle, high)
        return math.ceil(high * self.samples)


def share_drop(hits: Array, others: Array, confidence: float) -> Drop:
    """Return the drop of a share of samples.

    Args:
        hits, others: bool [samples], of the float file and of the other one. Where the float file
            hits every sample, or both the same ones, the interval is the exact one of a share, else
            Tango's.
        confidence: probability that the drop is on the inner side of one end.
    """
    total, both = len(hits), 2 * confidence - 1
    lost, gained = int((hits & ~others).sum()), int((others & ~hits).sum())

    def ends(factor: float) -> Ends:
        if hits.all():
            return exact_share_interval(lost * factor, total * factor, both)
        if not lost and not gained:  # where Tango's is too short
            _, most = exact_share_interval(0, total * factor, both)
            return -most, most
        interval = paired_share_interval(lost * factor, gained * factor, total * factor, both)
        return interval.low, interval.high

    return Drop((lost - gained) / total, total, ends)


def jackknife_drop(
    values: Values,
    samples: int,
    confidence: float,
    sign: float = 1.0,
    groups: int = GROUPS,
) -> Drop | None:
    """Return the drop of any statistic of samples, by the jackknife over groups of samples.

    The variance is that of the drops without one group each (Kott, Journal of Official Statistics
    17, 2001), with Student's distribution. Where few samples differ it is too small; the upper end
    of a statistic of at most 1 has the width of Wilson's interval for a sample that is lost whole.

    Args:
        values: see `Values`.
        samples: number of samples.
        confidence: see `share_drop`.
        sign: 1 for a metric of which more is better, -1 for others.
        groups: number of groups, at most one per sample.

    Returns:
        The drop; None below four samples, or where the statistic is not defined.
    """
    everything, count = np.arange(samples), min(groups, samples)
    if count < 4:
        return None
    order = np.random.default_rng(0).permutation(samples)
    parts = [np.sort(part) for part in np.array_split(order, count)]
    real, other = values(everything)
    drops = sign * np.array([np.subtract(*values(np.delete(everything, p))) for p in parts])
    if not np.isfinite([real, other, *drops]).all():
        return None
    value = sign * (real - other)
    variance = (count - 1) / count * float(np.square(drops - drops.mean()).sum())
    z = NormalDist().inv_cdf(confidence)
    deviations = student_deviations(count - 1, z)
    whole = z**2 / 2 / samples if abs(real) <= 1 else 0.0

    def ends(factor: float) -> Ends:
        reach, extra = deviations * math.sqrt(variance / factor), whole / factor
        return value - reach, value + extra + math.hypot(reach, extra)

    return Drop(value, samples, ends)
