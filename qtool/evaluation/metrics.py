"""Metrics: one value per model, its loss relative to the reference, and the interval of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.core.errors import DataError, describe
from qtool.core.formats import percent
from qtool.core.types import Array
from qtool.evaluation.onnx_function import OnnxFunction

RESAMPLES = 2000
CONFIDENCE = 0.95


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
        drops: by how much each model is worse than the reference (negative: better).
        intervals: of the drops, by paired bootstrap; None if the metric is not a mean over samples.
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
        """Format a drop as a change: negative if the model is worse."""
        if drop == 0:
            return "no change"
        return f"{-100 * drop:+.2f} points" if self.percent else f"{-drop:+.3g}"


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
    intervals = [
        bootstrap(sign * (rows[0] - r), confidence=confidence) if paired else None for r in rows
    ]
    drops = tuple(sign * (means[0] - m) for m in means)
    return Metric(name, percent, higher_is_better, source, tuple(means), drops, tuple(intervals))


def bootstrap(
    values: Array, resamples: int = RESAMPLES, seed: int = 0, confidence: float = CONFIDENCE
) -> Interval:
    """Return the mean of [samples] values with its interval, by the percentile bootstrap.

    For differences between two models on the same samples this is the paired bootstrap. Values with
    few distinct numbers (hits and misses) are drawn as counts: the same distribution, but fast.
    """
    generator = np.random.default_rng(seed)
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


def user_metrics(
    function: Callable[[Any], Any],
    files: Sequence[Path],
    where: str,
    lower_is_better: Sequence[str] = (),
) -> tuple[Metric, ...]:
    """Evaluate the user's function on each model.

    Args:
        function: takes a model, which is called with tensors like the float model, and returns a
            number, an array with one number per sample, or a dict of these by name.
        where: name of the function in errors.
        lower_is_better: names of metrics that are errors or losses.

    Raises:
        DataError: the function raises, returns NaN or a non-number, or other names per model.
    """
    results = [call_metrics(function, file, where) for file in files]
    names = list(results[0])
    if different := next(
        (set(names) ^ set(other) for other in results if set(other) != set(names)), None
    ):
        raise DataError(f"{where} does not return '{min(different)}' for every model")
    if unknown := set(lower_is_better) - set(names):
        raise DataError(
            f"{where} returns no metric '{min(unknown)}'; it returns {', '.join(names)}"
        )
    return tuple(
        make_metric(n, [r[n] for r in results], "user", higher_is_better=n not in lower_is_better)
        for n in names
    )


def call_metrics(function: Callable[[Any], Any], file: Path, where: str) -> dict[str, Array]:
    """Return the metrics of the user's function on one file: a number or [samples], by name.

    Raises:
        DataError: as for `user_metrics`.
    """
    try:
        result = function(OnnxFunction(file))
    except (Exception, SystemExit) as error:
        raise DataError(f"{where} failed on {file.name}: {describe(error)}") from error
    if not isinstance(result, Mapping):
        result = {getattr(function, "__name__", "metric"): result}
    if not result:
        raise DataError(f"{where} returned an empty dict; return a number, or numbers by name")
    return {str(name): _number(value, f"{where}, '{name}'") for name, value in result.items()}


def _number(value: Any, where: str) -> Array:
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} is a {type(value).__name__}, not a number") from error
    if array.ndim > 1 or not array.size:
        raise DataError(
            f"{where} has shape {list(array.shape)}; return a number, or one per sample"
        )
    if not np.isfinite(array).all():
        raise DataError(f"{where} is {'NaN' if np.isnan(array).any() else 'infinite'}")
    return array
