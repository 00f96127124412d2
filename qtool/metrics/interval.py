"""An estimate with its interval."""

from __future__ import annotations

from dataclasses import dataclass

CONFIDENCE = 0.95
"""Probability that an interval holds, unless a caller names another one."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval, in the unit of the estimate."""

    value: float
    low: float
    high: float
