"""Metrics: one value per model, its loss relative to the reference, and the interval of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

from qtool.core.errors import OptionError
from qtool.core.formats import percent
from qtool.core.share_interval import exact_share_interval
from qtool.core.types import Array

RESAMPLES = 2000
CONFIDENCE = 0.95
PERPLEXITY = "perplexity"
"""Name of the metric of a causal language model."""
DEFAULT_DROP = 0.01
"""Largest loss without a goal: of a share one point, of another metric 1 % of the reference."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval, in the unit of the estimate."""

    value: float
    low: float
    high: float


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


def share_interval(hits: Array, confidence: float = CONFIDENCE) -> Interval:
    """Return the share of True in [samples] with its exact interval.

    A bootstrap of 450 hits in 450 samples gives an interval of zero width, where a miss in 122
    samples is possible.
    """
    count = int(np.count_nonzero(hits))
    return Interval(count / len(hits), *exact_share_interval(count, len(hits), confidence))


def paired_interval(differences: Array, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of [samples] differences between two models on the same samples.

    Differences of hits and misses (-1, 0 and 1) have the score interval of Tango (Statistics in
    Medicine 17, 1998), which has a width where no sample differs; other numbers are bootstrapped.
    """
    if not np.isin(differences, (-1.0, 0.0, 1.0)).all():
        return bootstrap(differences, confidence=confidence)
    lost, gained = (int(np.count_nonzero(differences == d)) for d in (1.0, -1.0))
    return paired_share_interval(lost, gained, len(differences), confidence)


def paired_share_interval(
    lost: float, gained: float, total: float, confidence: float = CONFIDENCE
) -> Interval:
    """Return the difference of two shares of the same samples with Tango's interval.

    Args:
        lost, gained: number of samples that only the first, only the second model hits; they need
            be no integers.
        total: number of samples.
        confidence: probability that the interval holds.
    """
    value = (lost - gained) / total
    limit = NormalDist().inv_cdf(0.5 + confidence / 2)

    def probable(t: float) -> bool:
        """Return True if a true difference `t` gives these samples by chance."""
        b = (2 * total - lost + gained) * t - lost - gained
        c = -gained * t * (1 - t)
        share = (sqrt(b * b - 8 * total * c) - b) / (4 * total)
        variance = total * (2 * share + t * (1 - t))
        return abs(total * (value - t)) <= limit * sqrt(max(variance, 0.0))

    return Interval(value, _last(probable, value, -1.0), _last(probable, value, 1.0))


def _last(holds: Callable[[float], bool], start: float, stop: float) -> float:
    """Return the last number on the way from `start` to `stop` for which a condition holds."""
    for _ in range(50):
        middle = (start + stop) / 2
        start, stop = (middle, stop) if holds(middle) else (start, middle)
    return start


def bootstrap(
    values: Array, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> Interval:
    """Return the mean of [samples] values with its interval, by the percentile bootstrap.

    For differences between two models on the same samples this is the paired bootstrap. Values with
    few distinct numbers are drawn as counts: the same distribution, but fast.
    """
    generator = np.random.default_rng(0)
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= 16:
        drawn = generator.multinomial(len(values), counts / len(values), resamples)
        means = drawn @ distinct / len(values)
    else:
        means = np.empty(resamples)
        for i in range(resamples):
            means[i] = values[generator.integers(0, len(values), len(values))].mean()
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return Interval(float(values.mean()), float(low), float(high))


def bootstrap_sums(
    sums: Array, statistic: Callable[..., Any], confidence: float = CONFIDENCE
) -> Interval:
    """Return a statistic of sums over samples with its interval, by the percentile bootstrap.

    For ratios such as a mean over tokens, whose samples have different numbers of tokens.

    Args:
        sums: [k, samples] terms of the k sums.
        statistic: function of the k sums.
    """
    generator = np.random.default_rng(0)
    count = sums.shape[1]
    drawn = np.empty((len(sums), RESAMPLES))
    for i in range(RESAMPLES):
        drawn[:, i] = sums[:, generator.integers(0, count, count)].sum(1)
    tail = 100 * (1 - confidence) / 2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        values, value = statistic(*drawn), statistic(*sums.sum(1))
    low, high = np.nanpercentile(values, [tail, 100 - tail])  # samples drawn may have no tokens
    return Interval(float(value), float(low), float(high))


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
