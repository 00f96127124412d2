"""The exact interval of a share (Clopper and Pearson, Biometrika 26, 1934)."""

from __future__ import annotations

from math import exp, lgamma, log, log1p

_TERMS, _TINY = 300, 1e-300


def exact_share_interval(hits: float, size: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the shares that do not make so few or so many hits unlikely.

    Args:
        hits: number of hits, at most `size`; it need be no integer.
        size: number of independent values.
        confidence: probability that the interval holds, between 0 and 1.
    """
    tail, missed = (1 - confidence) / 2, size - hits
    low = _beta_quantile(tail, hits, missed + 1) if hits > 0 else 0.0
    high = 1 - _beta_quantile(tail, missed, hits + 1) if missed > 0 else 1.0
    return low, high


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
