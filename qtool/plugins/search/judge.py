"""Evaluated files, and their score on the data: metric with interval, and error of the outputs.

The outputs of the float model are computed once and kept up to a limit; batches over the limit are
run again for each file.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qtool.core.errors import DataError
from qtool.core.progress import track
from qtool.core.sqnr import NO_SIGNAL_DB, decibels
from qtool.core.types import Array
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.evaluation.measure.output_pass import Reference, Yardsticks, measure_arrays
from qtool.evaluation.user_metrics import call_metrics
from qtool.metrics.built_in import agreement_metric, built_in_metrics
from qtool.metrics.intervals import CONFIDENCE, Interval
from qtool.metrics.metric import Metric, make_metric
from qtool.metrics.sample_statistics import SampleStatistics, check_finite
from qtool.planning.recipe import Recipe

MAX_KEPT = 2**29  # bytes of the float model's outputs
MAX_NOISE = 1e20  # noise-to-signal ratio of a file that gives NaN or Inf


@dataclass(frozen=True)
class Score:
    """Error and metric of one file, relative to the float model.

    Attributes:
        samples: number of evaluated samples.
        sqnr_db: SQNR of all outputs; None if there is no error, `NO_SIGNAL_DB` where no output has
            a signal.
        noise: noise-to-signal ratio of all outputs.
        metric: the metric of the float model and of the file; None if none was measured.
    """

    samples: int
    sqnr_db: float | None
    noise: float
    metric: Metric | None = None

    @property
    def drop(self) -> float | None:
        """Loss of the metric (positive: worse)."""
        return None if self.metric is None else self.metric.drops[1]

    @property
    def worst_case_drop(self) -> float | None:
        """Upper confidence bound of the drop; without an interval, the drop itself."""
        interval = None if self.metric is None else self.metric.intervals[1]
        return self.drop if interval is None else interval.high

    @property
    def text(self) -> str:
        """The metric as text: float -> quantized (interval of the change)."""
        if (metric := self.metric) is None:
            return ""
        real, own = map(metric.text, metric.values)
        interval = metric.change_interval(1)
        return f"{metric.name} {real} -> {own}{f' ({interval})' if interval else ''}"


class Judge:
    """Runs files on the evaluation data.

    The metric is the user's function if there is one, else top-1 if there are labels, else the
    perplexity of a causal language model, else the share of samples (or of tokens) with the best
    class of the float model if the first output holds scores, else what the outputs agree in.
    """

    def __init__(
        self,
        float_file: Path,
        data: Iterable[Any],
        labels: ArrayLike | None = None,
        function: Callable[[Any], Any] | None = None,
        where: str = "the evaluation function",
        lower_is_better: Sequence[str] = (),
        confidence: float = CONFIDENCE,
    ) -> None:
        self.file, self.data = float_file, data
        self.labels = None if labels is None else np.asarray(labels)
        self.function, self.where, self.lower = function, where, lower_is_better
        self.confidence = confidence

    def score(self, file: Path) -> Score:
        """Evaluate a file on all of the data.

        Raises:
            DataError: no data, or data, labels or the function cannot be used; or the float model
                outputs NaN or Inf on every sample.
            VerificationError: the file does not run.
        """
        yardsticks, reference = Yardsticks(), self._float_file
        data = Feeder(reference.session, self.data, partial(track, "evaluating"))
        measured = measure_arrays(reference, [file], data, yardsticks=yardsticks)
        check_finite(measured)
        signal, noise = float(measured.signal.sum()), float(measured.noise[1].sum())
        share = min(noise / signal, MAX_NOISE) if signal else 0.0
        measure = decibels(signal, noise) if signal else NO_SIGNAL_DB
        metric = self._metric(file, measured, yardsticks)
        if metric is not None and metric.intervals[1] is not None and not noise:
            none = Interval(0.0, 0.0, 0.0)  # the float model itself: nothing left to chance
            metric = replace(metric, intervals=(none, none))
        return Score(measured.samples, measure, share, metric)

    @cached_property
    def _float_file(self) -> Reference:
        return Reference(self.file, limit=MAX_KEPT)

    def _metric(
        self, file: Path, measured: SampleStatistics, yardsticks: Yardsticks
    ) -> Metric | None:
        if self.function is not None:
            values = call_metrics(self.function, file, self.where)
            name = next(iter(values))
            if name not in self._reference:
                raise DataError(f"{self.where} does not return '{name}' for every model")
            rows = (self._reference[name], values[name])
            higher = name not in self.lower
            return make_metric(
                name, rows, "user", higher_is_better=higher, confidence=self.confidence
            )
        if metrics := built_in_metrics(measured, self.labels, self.confidence):
            return metrics[0]
        *_, agreements = yardsticks.agreements().files
        return agreement_metric(measured, agreements, self.confidence)

    @cached_property
    def _reference(self) -> dict[str, Array]:
        assert self.function is not None
        return call_metrics(self.function, self.file, self.where)


@dataclass(frozen=True)
class Trial:
    """One evaluated file.

    Attributes:
        key: key of its recipe.
        accuracy: accuracy level of its recipe.
        choices: precision of each layer.
        score: error and metric.
        speed: float time / its time.
        size: bytes of the file.
        share: share of the MACs in integer kernels.
        seconds: duration of the evaluation.
    """

    key: str
    accuracy: str
    choices: tuple[str, ...]
    score: Score
    speed: Ratio
    size: int
    share: float
    seconds: float

    @property
    def speedup(self) -> float:
        """Median of the speed-ups over float."""
        return self.speed.median

    @property
    def counts(self) -> str:
        """How many layers have each precision, as text."""
        return ", ".join(f"{count} {name}" for name, count in Counter(self.choices).items())


def recipe_key(recipe: Recipe) -> str:
    """Return the key of a recipe: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(recipe.to_json()).encode()).hexdigest()[:16]
