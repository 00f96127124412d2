"""Correlation of two series of numbers, and of their ranks."""

from __future__ import annotations

import math

import numpy as np

from qtool.core.types import Array


def rank_correlation(first: Array, second: Array) -> float:
    """Return Spearman's rank correlation of [samples] numbers; NaN where one series is constant."""
    a, b = average_ranks(first), average_ranks(second)
    deviation = a.std() * b.std()
    if not deviation:
        return math.nan
    return float(((a - a.mean()) * (b - b.mean())).mean() / deviation)


def average_ranks(a: Array) -> Array:
    """Return the ranks of [samples] numbers; equal ones share their mean."""
    _, index, counts = np.unique(a, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts + 1) / 2)[index]
    return ranks


def correlation(predicted: Array, true: Array) -> float | None:
    """Return the correlation of two series; None for fewer than 3 values, or if all are equal."""
    if len(true) < 3 or np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return None
    return float(np.corrcoef(predicted, true)[0, 1])
