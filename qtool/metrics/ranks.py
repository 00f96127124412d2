"""Rank correlation of two series of numbers, and its interval."""

from __future__ import annotations

import math

import numpy as np

from qtool.core.types import Array
from qtool.metrics.sample_ratios import cosine_interval, student_deviations


def rank_correlation(first: Array, second: Array) -> float:
    """Return Spearman's rank correlation of [samples] numbers; NaN where one series is constant."""
    a, b = average_ranks(first), average_ranks(second)
    deviation = a.std() * b.std()
    if not deviation:
        return math.nan
    return float(((a - a.mean()) * (b - b.mean())).mean() / deviation)


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
