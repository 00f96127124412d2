"""The interval of a median, without an assumption on the distribution."""

from __future__ import annotations

import numpy as np

from qtool.core.types import Array
from qtool.metrics.interval import CONFIDENCE


def median_interval(values: Array) -> tuple[float, float]:
    """Return the 95 % interval of the median of which values are a sample.

    Between order statistics it interpolates (Hettmansperger and Sheather 1986). With fewer than 6
    values it is from the smallest to the largest.
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
