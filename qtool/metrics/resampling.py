"""Intervals of means and of functions of sums over samples, by the percentile bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qtool.core.types import Array
from qtool.metrics.interval import CONFIDENCE, Interval

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
