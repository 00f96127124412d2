"""Metrics: one value per model, its loss relative to the reference, and the interval of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtool.core.errors import OptionError
from qtool.core.number_texts import percent
from qtool.core.types import Array
from qtool.metrics.intervals import CONFIDENCE, Interval, bootstrap_sums, paired_interval

PERPLEXITY = "perplexity"
"""Name of the metric of a causal language model."""
DEFAULT_DROP = 0.01
"""Largest loss without a goal: of a share one point, of another metric 1 % of the reference."""


@dataclass(frozen=True)
class Metric:
    """A metric of every model, in the order of the models.

    Attributes:
        percent: True if the values are shares, shown in percent.
        source: "built in" or "user".
        values: one per model.
        drops: difference by which each model is worse than the reference (negative: better).
        intervals: intervals of the drops, see `paired_interval`; None if the metric is not a mean
            over samples.
    """

    name: str
    percent: bool
    higher_is_better: bool
    source: str
    values: tuple[float, ...]
    drops: tuple[float, ...]
    intervals: tuple[Interval | None, ...]

    def text(self, value: float) -> str:
        """Format a value in the unit of this metric."""
        return percent(value) if self.percent else f"{value:.5g}"

    def amount(self, drop: float) -> str:
        """Format the size of a drop in the unit of this metric."""
        return f"{100 * drop if self.percent else drop:.3g}{self._unit}"

    def change(self, drop: float) -> str:
        """Format a drop as a change of the value: positive if it grows, better or worse."""
        return "unchanged" if drop == 0 else self._signed(self._growth(drop)) + self._unit

    def change_interval(self, model: int) -> str:
        """Format the interval of the change of a model; "" if there is none."""
        interval = self.intervals[model]
        if interval is None:
            return ""
        ends = sorted(map(self._growth, (interval.low, interval.high)))
        return " to ".join(map(self._signed, ends)) + self._unit

    def _growth(self, drop: float) -> float:
        return -drop if self.higher_is_better else drop

    @property
    def _unit(self) -> str:
        return " points" if self.percent else ""

    def _signed(self, value: float) -> str:
        return f"{100 * value + 0.0:+.2f}" if self.percent else f"{value + 0.0:+.3g}"


def default_drop(percent: bool, reference: float | None) -> float:
    """Return the largest loss of a metric without a goal.

    Args:
        percent: True if the metric is a share.
        reference: its value for the float model.
    """
    return DEFAULT_DROP if percent or reference is None else DEFAULT_DROP * abs(reference)


def check_drop(max_drop: float | None, percent: bool) -> None:
    """Check that a goal for the loss of a metric can be missed.

    Raises:
        OptionError: the metric is a share, and 100 points or more may be lost.
    """
    if percent and max_drop is not None and max_drop >= 1:
        raise OptionError(
            f"a drop of {max_drop:g} allows {100 * max_drop:g} points of a share, so that every "
            "file meets it; 0.01 is one point"
        )


def make_metric(
    name: str,
    values: Sequence[Array] | Array,
    source: str,
    percent: bool = False,
    higher_is_better: bool = True,
    confidence: float = CONFIDENCE,
) -> Metric:
    """Return a metric from [samples] values, or a single number, of every model."""
    rows = [np.asarray(v, np.float64) for v in values]
    means = [float(r.mean()) for r in rows]
    sign = 1.0 if higher_is_better else -1.0
    paired = all(r.ndim == 1 and len(r) == len(rows[0]) > 1 for r in rows)
    intervals = (
        (
            Interval(0.0, 0.0, 0.0),
            *(paired_interval(sign * (rows[0] - r), confidence) for r in rows[1:]),
        )
        if paired
        else (None,) * len(rows)
    )
    drops = tuple(sign * (means[0] - m) for m in means)
    return Metric(name, percent, higher_is_better, source, tuple(means), drops, intervals)


def perplexity_metric(loss: Array, tokens: Array, confidence: float = CONFIDENCE) -> Metric:
    """Return the perplexity of every model: exp of the mean cross-entropy of the next tokens.

    Args:
        loss: [models, samples] sum of the cross-entropy over the tokens of a sample, in nats.
        tokens: [samples] number of these tokens.
        confidence: probability of the intervals, which are over samples; None for a single sample.
    """
    with np.errstate(over="ignore"):
        values = [float(np.exp(row.sum() / tokens.sum())) for row in loss]

    def change(own: Any, reference: Any, count: Any) -> Any:
        return np.exp(own / count) - np.exp(reference / count)

    intervals = [
        bootstrap_sums(np.stack([row, loss[0], tokens]), change, confidence)
        if len(tokens) > 1
        else None
        for row in loss
    ]
    drops = tuple(value - values[0] for value in values)
    return Metric(PERPLEXITY, False, False, "built in", tuple(values), drops, tuple(intervals))
