"""Estimates with confidence intervals: bootstraps, shares of samples, medians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, lgamma, log, log1p, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

from qtool.core.types import Array

CONFIDENCE = 0.95
"""Probability that an interval holds, unless a caller names another one."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval, in the unit of the estimate."""

    value: float
    low: float
    high: float


RESAMPLES = 2000


def bootstrap(
    values: Array, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> Interval:
    """Return the mean of [samples] values with its interval, by the percentile bootstrap.

    For differences between two models on the same samples this is the paired bootstrap. Values with
    few distinct numbers are drawn as counts: the same distribution, but fast.
    """
    generator = np.random.default_rng(0)
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= 16:
        drawn = generator.multinomial(len(values), counts / len(values), resamples)
        means = drawn @ distinct / len(values)
    else:
        means = np.empty(resamples)
        for i in range(resamples):
            means[i] = values[generator.integers(0, len(values), len(values))].mean()
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return Interval(float(values.mean()), float(low), float(high))


def bootstrap_sums(
    sums: Array, statistic: Callable[..., Any], confidence: float = CONFIDENCE
) -> Interval:
    """Return a statistic of sums over samples with its interval, by the percentile bootstrap.

    For ratios such as a mean over tokens, whose samples have different numbers of tokens.

    Args:
        sums: [k, samples] terms of the k sums.
        statistic: function of the k sums.
    """
    generator = np.random.default_rng(0)
    count = sums.shape[1]
    drawn = np.empty((len(sums), RESAMPLES))
    for i in range(RESAMPLES):
        drawn[:, i] = sums[:, generator.integers(0, count, count)].sum(1)
    tail = 100 * (1 - confidence) / 2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        values, value = statistic(*drawn), statistic(*sums.sum(1))
    low, high = np.nanpercentile(values, [tail, 100 - tail])  # samples drawn may have no tokens
    return Interval(float(value), float(low), float(high))


_TERMS, _TINY = 300, 1e-300


def exact_share_interval(
    hits: float, size: float, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the exact interval of a share (Clopper and Pearson, Biometrika 26, 1934).

    Args:
        hits: number of hits, at most `size`; it need be no integer.
        size: number of independent values.
        confidence: probability that the interval holds, between 0 and 1.
    """
    tail, missed = (1 - confidence) / 2, size - hits
    low = _beta_quantile(tail, hits, missed + 1) if hits > 0 else 0.0
    high = 1 - _beta_quantile(tail, missed, hits + 1) if missed > 0 else 1.0
    return low, high


def paired_interval(differences: Array, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of [samples] differences between two models on the same samples.

    Differences of hits and misses (-1, 0 and 1) have the score interval of Tango (Statistics in
    Medicine 17, 1998), which has a width where no sample differs; other numbers are bootstrapped.
    """
    if not np.isin(differences, (-1.0, 0.0, 1.0)).all():
        return bootstrap(differences, confidence=confidence)
    lost, gained = (int(np.count_nonzero(differences == d)) for d in (1.0, -1.0))
    return paired_share_interval(lost, gained, len(differences), confidence)


def paired_share_interval(
    lost: float, gained: float, total: float, confidence: float = CONFIDENCE
) -> Interval:
    """Return the difference of two shares of the same samples with Tango's interval.

    Args:
        lost, gained: number of samples that only the first, only the second model hits; they need
            be no integers.
        total: number of samples.
        confidence: probability that the interval holds.
    """
    value = (lost - gained) / total
    limit = NormalDist().inv_cdf(0.5 + confidence / 2)

    def probable(t: float) -> bool:
        """Return True if a true difference `t` gives these samples by chance."""
        b = (2 * total - lost + gained) * t - lost - gained
        c = -gained * t * (1 - t)
        share = (sqrt(b * b - 8 * total * c) - b) / (4 * total)
        variance = total * (2 * share + t * (1 - t))
        return abs(total * (value - t)) <= limit * sqrt(max(variance, 0.0))

    return Interval(value, _last(probable, value, -1.0), _last(probable, value, 1.0))


def _last(holds: Callable[[float], bool], start: float, stop: float) -> float:
    """Return the last number on the way from `start` to `stop` for which a condition holds."""
    for _ in range(50):
        middle = (start + stop) / 2
        start, stop = (middle, stop) if holds(middle) else (start, middle)
    return start


def _beta_quantile(probability: float, a: float, b: float) -> float:
    """Return the number that a beta-distributed one is below with a probability."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _beta_share(middle, a, b) < probability else (low, middle)
    return low


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function by its continued fraction (DLMF 8.17.22)."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(1 - x, b, a)
    if x <= 0:
        return 0.0
    scale = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    fraction, c, d = 1.0, 1.0, 0.0  # the method of Lentz
    for term in range(_TERMS):
        m = term // 2
        if term == 0:
            numerator = 1.0
        elif term % 2:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + numerator * d or _TINY)
        c = 1 + numerator / c or _TINY
        fraction *= c * d
        if abs(1 - c * d) < 1e-12:
            break
    return scale * (fraction - 1)


FEWEST = 6
"""Values that tell a 95 % interval of their median."""


def median_interval(values: Array) -> tuple[float, float]:
    """Return the 95 % interval of the median of which values are a sample.

    Between order statistics it interpolates (Hettmansperger and Sheather 1986). With fewer
    than `FEWEST` values it is from the smallest to the largest.
    """
    ordered = np.sort(values)
    n = len(ordered)
    covers = 1 - 2 * _binomial_tails(n)
    k = int((covers >= CONFIDENCE).sum())
    if k == 0:
        return float(ordered[0]), float(ordered[-1])
    low, high = ordered[k - 1], ordered[n - k]
    inner = ordered[min(k, n - 1)], ordered[max(n - k - 1, 0)]
    if k < len(covers) and np.isfinite([low, high, *inner]).all():
        part = (covers[k - 1] - CONFIDENCE) / (covers[k - 1] - covers[k])
        weight = (n - k) * part / (k + (n - 2 * k) * part)
        low, high = low + weight * (inner[0] - low), high + weight * (inner[1] - high)
    return float(low), float(high)


def _binomial_tails(n: int) -> Array:
    """Return the probabilities of at most 0, 1, ... n // 2 - 1 heads in n tosses of a coin."""
    heads = np.arange(1, n // 2)
    # Sums of logarithms: thousands of tosses have coefficients beyond float64.
    logarithms = np.concatenate([[0.0], np.cumsum(np.log((n - heads + 1) / heads))])[: n // 2]
    tails: Array = np.cumsum(np.exp(logarithms - n * np.log(2)))
    return tails
