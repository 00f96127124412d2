"""Observers: statistics of a tensor's values, and the quantization range estimated from them.

An observer is a statistic, a range estimate and a granularity (per tensor or per channel), named
by a row of the registry.
"""

from __future__ import annotations

from qtool.core.observer_options import Option, options_of, parse
from qtool.observers.histogram import Bins, Histogram
from qtool.observers.min_max import MinMax
from qtool.observers.moving_average import MovingAverage
from qtool.observers.ranges import MIN_SCALE, Range, solve
from qtool.observers.registry import (
    OBSERVERS,
    Observer,
    StatisticType,
    create,
    range_of,
    range_of_rows,
    register,
    restore,
)
from qtool.observers.statistic import RangeStatistic, State, Statistic, depends_on_order

__all__ = [
    "MIN_SCALE",
    "OBSERVERS",
    "Bins",
    "Histogram",
    "MinMax",
    "MovingAverage",
    "Observer",
    "Option",
    "Range",
    "RangeStatistic",
    "State",
    "Statistic",
    "StatisticType",
    "create",
    "depends_on_order",
    "options_of",
    "parse",
    "range_of",
    "range_of_rows",
    "register",
    "restore",
    "solve",
]
