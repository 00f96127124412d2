"""95 % intervals of agreements over new samples: values within a sample are not independent.

A share of tokens or pixels, an F1 and a mean cosine are ratios of two sums over samples, whose
variance follows from the residuals of the samples (Cochran, Sampling Techniques, 1977, ch. 6).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from qtool.core.types import Array
from qtool.metrics.intervals import CONFIDENCE, exact_share_interval

Z = 1.959964  # standard normal deviations on either side of 95 %


def student_deviations(freedom: int, z: float = Z) -> float:
    """Return those of Student's distribution for as many normal ones: the first terms of its
    Cornish-Fisher expansion."""
    once, twice = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + once / freedom + twice / freedom**2


def clustered_share_interval(
    hits: Array, counts: Array, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Return the interval of a share between 0 and 1; None for fewer than two samples.

    It is the exact one (Clopper and Pearson) for as many independent values as give the variance
    between the samples (Korn and Graubard, Survey Methodology 24, 1998), at least those that whole
    samples are (Kish, Survey Sampling, 1965, ch. 8): single values count as they are. Where every
    sample has the same share it is for as many as there are samples.

    Simulated intervals of 10, 50 and 450 single values with shares of 1, 0.99 and 0.9 cover these
    in 96 to 100 % of cases, those of texts of 5 to 60 tokens with correlation 0.05 in 94 to 100 %;
    percentiles of a bootstrap cover the latter in 87 to 94 %.

    Args:
        hits: float64 [samples], the numerators.
        counts: float64 [samples], the denominators.
        confidence: probability that the interval holds, between 0 and 1.
    """
    hits, counts = hits[counts > 0], counts[counts > 0]
    if len(counts) < 2:
        return None
    value, variance = _ratio(hits, counts)
    spread = value * (1 - value)
    size = float(len(counts))
    if variance > 0 and spread > 0:
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        independent = spread / variance * (z / student_deviations(len(counts) - 1, z)) ** 2
        size = max(independent, float(counts.sum() ** 2 / np.square(counts).sum()))
    hit = float(hits.sum()) * size / float(counts.sum())  # exact where single values count
    return exact_share_interval(hit, size, confidence)


def below_one_interval(
    sums: Array, counts: Array, least: float = -math.inf
) -> tuple[float, float] | None:
    """Return the interval of a ratio of at most 1, a mean cosine or R2; None for fewer than two
    samples.

    Distances from 1 are positive and skewed: the interval is symmetric in their logarithm.

    Args:
        sums: float64 [samples], of the cosines of a sample's vectors, or its spread less its error.
        counts: float64 [samples], numbers of its vectors, or its spread.
        least: value that the ratio may have.
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
    return max(least, 1 - distance * factor), 1 - distance / factor


def _ratio(sums: Array, counts: Array) -> tuple[float, float]:
    """Return a ratio of two sums over samples and its variance."""
    total, n = float(counts.sum()), len(counts)
    value = float(sums.sum()) / total
    residuals = float(np.square(sums - value * counts).sum())
    return value, n / (n - 1) * residuals / total**2
