"""Score of a file on the evaluation data: metric with interval, and error of the outputs.

The outputs of the float model are computed once and kept up to a limit; batches over the limit are
run again for each file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnxruntime.session import run, session
from qtool.core.errors import DataError
from qtool.core.progress import track
from qtool.core.types import Array
from qtool.evaluation.measure.accuracy import check_labels
from qtool.evaluation.metrics import CONFIDENCE, Interval, Metric, call_metrics, make_metric
from qtool.verification.fidelity import decibels
from qtool.verification.model_inputs import Feeder
from qtool.verification.strip_padding import Padding

MAX_KEPT = 2**29  # bytes of the float model's outputs


@dataclass(frozen=True)
class Score:
    """Error and metric of one file, relative to the float model.

    Attributes:
        samples: number of evaluated samples.
        sqnr_db: of all outputs; None if there is no error.
        noise: noise-to-signal ratio of all outputs.
        metric: its name, or "" if no metric was measured.
        percent: True if the metric is a share.
        value, reference: metric of the file and of the float model.
        drop: loss of the metric (positive: worse).
        low, high: confidence interval of the drop; None if the metric is a single number.
    """

    samples: int
    sqnr_db: float | None
    noise: float
    metric: str = ""
    percent: bool = False
    value: float | None = None
    reference: float | None = None
    drop: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def worst_case_drop(self) -> float | None:
        """Upper confidence bound of the drop; without an interval, the drop itself."""
        return self.drop if self.high is None else self.high

    @property
    def text(self) -> str:
        """The metric as text: float -> quantized (interval of the change)."""
        if self.drop is None or self.reference is None or self.value is None:
            return ""
        unit, mark = (100.0, " points") if self.percent else (1.0, "")
        change = f"{self.metric} {unit * self.reference:.4g} -> {unit * self.value:.4g}"
        if self.low is None or self.high is None:
            return change
        ends = (f"{0.0 - unit * end:+.3g}" for end in (self.high, self.low))
        return f"{change} ({' to '.join(ends)}{mark})"


class Judge:
    """Runs files on the evaluation data.

    The metric is the user's function if there is one, else top-1 if there are labels, else the
    share of samples with the top-1 of the float model if the first output holds scores.
    """

    def __init__(
        self,
        float_file: Path,
        data: Iterable[Any],
        labels: Array | None = None,
        function: Callable[[Any], Any] | None = None,
        where: str = "the evaluation function",
        lower_is_better: Sequence[str] = (),
        confidence: float = CONFIDENCE,
    ) -> None:
        self.file, self.data, self.labels = float_file, data, labels
        self.function, self.where, self.lower = function, where, lower_is_better
        self.confidence = confidence
        self._kept: list[list[Array]] = []
        self._bytes = 0

    def score(self, file: Path) -> Score:
        """Evaluate a file on all of the data.

        Raises:
            DataError: no data, or data, labels or the function cannot be used.
            VerificationError: the file does not run.
        """
        signal = noise = 0.0
        answers: list[tuple[Array, Array]] = []
        samples = 0
        opened, feeder = session(file), Feeder(self.file)
        for index, item in enumerate(track("evaluating", self.data)):
            arrays = feeder.arrays(item, index)
            before = self._float_outputs(index, arrays)
            after = self._padding.strip(arrays, run(opened, arrays))
            samples += len(before[0]) if before[0].ndim else 1
            for a, b in zip(before, after, strict=True):
                if a.dtype.kind == "f":
                    wide = a.astype(np.float64).ravel()
                    signal += float(wide @ wide)
                    error = wide - b.astype(np.float64).ravel()
                    noise += float(error @ error)
            if _is_class_scores(before[0]):
                answers.append((before[0].argmax(1), after[0].argmax(1)))
        if not samples:
            raise DataError("the evaluation data is empty; give at least one batch")
        share = noise / signal if signal else 0.0
        measured = self._metric(file, answers, samples)
        base = Score(samples, decibels(signal, noise), share)
        if measured is None:
            return base
        interval = measured.intervals[1]
        if interval is not None and not noise:  # the float model itself: nothing left to chance
            interval = Interval(0.0, 0.0, 0.0)
        return Score(
            samples,
            base.sqnr_db,
            share,
            measured.name,
            measured.percent,
            measured.values[1],
            measured.values[0],
            measured.drops[1],
            None if interval is None else interval.low,
            None if interval is None else interval.high,
        )

    def _float_outputs(self, index: int, arrays: list[Array]) -> list[Array]:
        if index < len(self._kept):
            return self._kept[index]
        outputs = self._padding.strip(arrays, run(self._session, arrays))
        self._bytes += sum(a.nbytes for a in outputs)
        if index == len(self._kept) and self._bytes <= MAX_KEPT:
            self._kept.append(outputs)
        return outputs

    @cached_property
    def _session(self) -> Any:
        return session(self.file)

    @cached_property
    def _padding(self) -> Padding:
        return Padding.of_session(self._session)

    def _metric(
        self, file: Path, answers: list[tuple[Array, Array]], samples: int
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
        if self.labels is not None:
            check_labels(self.labels, samples)
        if not answers:
            if self.labels is not None:
                raise DataError(
                    "labels need [samples, classes] scores as the first output; use --eval instead"
                )
            return None
        expected, actual = (np.concatenate(column) for column in zip(*answers, strict=True))
        if self.labels is None:
            hits, name = [np.ones(len(actual)), actual == expected], "agreement with float"
        else:
            hits, name = [expected == self.labels, actual == self.labels], "top-1"
        return make_metric(name, hits, "built in", percent=True, confidence=self.confidence)

    @cached_property
    def _reference(self) -> dict[str, Array]:
        assert self.function is not None
        return call_metrics(self.function, self.file, self.where)


def _is_class_scores(output: Array) -> bool:
    return output.ndim == 2 and output.shape[1] > 1 and output.dtype.kind == "f"
