"""95 % intervals of agreements over new samples: values within a sample are not independent.

A share of tokens or pixels, an F1 and a mean cosine are ratios of two sums over samples, whose
variance follows from the residuals of the samples (Cochran, Sampling Techniques, 1977, ch. 6).
"""

from __future__ import annotations

import math

import numpy as np

from qtool.core.types import Array

Z = 1.959964  # standard normal deviations on either side of 95 %


def student_deviations(freedom: int) -> float:
    """Return those of Student's distribution: the first terms of its Cornish-Fisher expansion."""
    once, twice = (Z**3 + Z) / 4, (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    return Z + once / freedom + twice / freedom**2


def share_interval(hits: Array, counts: Array) -> tuple[float, float] | None:
    """Return the interval of a share between 0 and 1; None for fewer than two samples.

    It is that of Wilson (1927) for as many independent values as give the variance between the
    samples; where every sample has the same share, for as many as there are samples.

    Args:
        hits: float64 [samples], the numerators.
        counts: float64 [samples], the denominators.
    """
    hits, counts = hits[counts > 0], counts[counts > 0]
    if len(counts) < 2:
        return None
    value, variance = _ratio(hits, counts)
    spread = value * (1 - value)
    size = spread / variance if variance > 0 and spread > 0 else len(counts)
    deviations = student_deviations(len(counts) - 1)
    z = deviations**2 / size
    middle = (value + z / 2) / (1 + z)
    reach = deviations / (1 + z) * math.sqrt(spread / size + z / (4 * size))
    return max(0.0, min(middle - reach, value)), min(1.0, max(middle + reach, value))


def cosine_interval(sums: Array, counts: Array) -> tuple[float, float] | None:
    """Return the interval of a mean cosine; None for fewer than two samples.

    Distances from 1 are positive and skewed: the interval is symmetric in their logarithm.

    Args:
        sums: float64 [samples], of the cosines of a sample's vectors.
        counts: float64 [samples], numbers of its vectors.
    """
    sums, counts = sums[counts > 0], counts[counts > 0]
    if len(counts) < 2:
        return None
    value, variance = _ratio(sums, counts)
    distance = 1 - value
    if distance <= 0 or variance <= 0:
        return value, value
    reach = student_deviations(len(counts) - 1) * math.sqrt(variance) / distance
    factor = math.exp(min(reach, 50.0))
    return max(-1.0, 1 - distance * factor), 1 - distance / factor


def rank_interval(value: float, first: Array, second: Array) -> tuple[float, float] | None:
    """Return the interval of Spearman's rank correlation; None below four samples.

    The wider one of two: Fisher's with the variance of Bonett and Wright (2000), for numbers that
    are nearly normal, and that of the mean squared difference of ranks, which few samples may
    decide. Where no ranks differ, three swaps of neighbours are within it.

    Args:
        value: the correlation.
        first, second: float64 [samples], ranks.
    """
    n, squares = len(first), np.square(first - second)
    if n < 4:
        return None
    if not squares.any():
        return 1 - 36 / (n * (n**2 - 1)), 1.0
    mean = cosine_interval(1 - (1 - value) * squares / squares.mean(), np.ones(n))
    bounded = min(max(value, -1 + 1e-12), 1 - 1e-12)
    reach = student_deviations(n - 3) * math.sqrt((1 + bounded**2 / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(bounded) + sign * reach) for sign in (-1, 1))
    if mean is not None:
        low, high = min(low, mean[0]), max(high, mean[1])
    return low, 1 - (1 - high) * min(1.0, float(squares.mean()))


def _ratio(sums: Array, counts: Array) -> tuple[float, float]:
    """Return a ratio of two sums over samples and its variance."""
    total, n = float(counts.sum()), len(counts)
    value = float(sums.sum()) / total
    residuals = float(np.square(sums - value * counts).sum())
    return value, n / (n - 1) * residuals / total**2
