"""Rank correlation of two series of numbers."""

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
