"""95 % intervals of agreements over new samples: values within a sample are not independent.

A share of tokens or pixels, an F1 and a mean cosine are ratios of two sums over samples, whose
variance follows from the residuals of the samples (Cochran, Sampling Techniques, 1977, ch. 6).
"""

from __future__ import annotations

import math

import numpy as np

from qtool.core.share_interval import exact_share_interval
from qtool.core.types import Array

Z = 1.959964  # standard normal deviations on either side of 95 %


def student_deviations(freedom: int, z: float = Z) -> float:
    """Return those of Student's distribution for as many normal ones: the first terms of its
    Cornish-Fisher expansion."""
    once, twice = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + once / freedom + twice / freedom**2


def share_interval(hits: Array, counts: Array) -> tuple[float, float] | None:
    """Return the interval of a share between 0 and 1; None for fewer than two samples.

    It is the exact one (Clopper and Pearson) for as many independent values as give the variance
    between the samples (Korn and Graubard, Survey Methodology 24, 1998); where every sample has the
    same share, for as many as there are samples.

    Args:
        hits: float64 [samples], the numerators.
        counts: float64 [samples], the denominators.
    """
    hits, counts = hits[counts > 0], counts[counts > 0]
    if len(counts) < 2:
        return None
    value, variance = _ratio(hits, counts)
    spread = value * (1 - value)
    size = float(len(counts))
    if variance > 0 and spread > 0:
        size = spread / variance * (Z / student_deviations(len(counts) - 1)) ** 2
    return exact_share_interval(value * size, size)


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


def one_swap(samples: int) -> float:
    """Return the rank correlation of orders that differ by one swap of neighbours, rounded down.

    Among ten samples it says no more of other samples than equal orders do.
    """
    return 1 - 12 / (samples * (samples**2 - 1)) - 1e-9


def rank_interval(value: float, first: Array, second: Array) -> tuple[float, float] | None:
    """Return the interval of Spearman's rank correlation; None below four samples.

    The wider one of two: Fisher's with the variance of Bonett and Wright (2000), for numbers that
    are nearly normal, and that of the mean squared difference of ranks, which few samples may
    decide. Where no ranks differ, three swaps of neighbours are within it. A swap of neighbours
    weighs more among few samples than among many: the upper end is that of the differences as
    parts of a rank, which have no such floor.

    Args:
        value: the correlation.
        first, second: float64 [samples], the numbers.
    """
    n, ranks, others = len(first), average_ranks(first), average_ranks(second)
    squares = np.square(ranks - others)
    if n < 4:
        return None
    if not squares.any():
        return 1 - 36 / (n * (n**2 - 1)), 1.0
    bounded = min(max(value, -1 + 1e-12), 1 - 1e-12)
    reach = student_deviations(n - 3) * math.sqrt((1 + bounded**2 / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(bounded) + sign * reach) for sign in (-1, 1))
    for distance in (squares, np.square(_parts_of_a_rank(first, second))):
        mean = cosine_interval(1 - (1 - value) * distance / squares.mean(), np.ones(n))
        if mean is not None:
            low, high = min(low, mean[0]), max(high, mean[1])
    return low, high


def _parts_of_a_rank(first: Array, second: Array) -> Array:
    """Return the differences of [samples] numbers in ranks of the first, by the density near it."""
    n, order = len(first), np.argsort(first)
    near, place = max(1, math.isqrt(n) // 2), np.arange(n)
    low, high = np.maximum(place - near, 0), np.minimum(place + near, n - 1)
    widths = first[order][high] - first[order][low]
    parts = np.zeros(n)
    parts[order] = (second - first)[order] * (high - low) / np.where(widths > 0, widths, np.inf)
    clipped: Array = np.clip(parts, 1 - n, n - 1)
    return clipped


def average_ranks(a: Array) -> Array:
    """Return the ranks of [samples] numbers; equal ones share their mean."""
    _, index, counts = np.unique(a, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts + 1) / 2)[index]
    return ranks


def _ratio(sums: Array, counts: Array) -> tuple[float, float]:
    """Return a ratio of two sums over samples and its variance."""
    total, n = float(counts.sum()), len(counts)
    value = float(sums.sum()) / total
    residuals = float(np.square(sums - value * counts).sum())
    return value, n / (n - 1) * residuals / total**2
