"""What a file is worth: its metric beside the float model's, with an interval, and its error.

The float model is run once; what is kept of it are its outputs, or, where they are large, nothing,
and it is run again beside each file.
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
from qtool.evaluation.metrics import CONFIDENCE, Metric, call_metrics, make_metric
from qtool.verification.fidelity import decibels
from qtool.verification.model_inputs import Feeder
from qtool.verification.strip_padding import Padding

MAX_KEPT = 2**29  # bytes of the float model's outputs


@dataclass(frozen=True)
class Score:
    """What one file loses.

    sqnr_db: of all outputs, None where there is no error. metric: what was measured, "" where
    nothing was; value and reference: of the file and of the float model. drop: by how much it is
    worse; low, high: the interval of that, None where the metric is a single number.
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
        """The largest drop that the data does not rule out; of a single number the drop itself."""
        return self.drop if self.high is None else self.high

    @property
    def text(self) -> str:
        """The metric in words."""
        if self.drop is None or self.reference is None or self.value is None:
            return ""
        unit, mark = (100.0, " points") if self.percent else (1.0, "")
        found = f"{self.metric} {unit * self.reference:.4g} -> {unit * self.value:.4g}"
        if self.low is None or self.high is None:
            return found
        ends = (f"{0.0 - unit * end:+.3g}" for end in (self.high, self.low))
        return f"{found} ({' to '.join(ends)}{mark})"


class Judge:
    """Runs files on the evaluation data.

    The metric is the user's function, where there is one; else top-1 where there are labels; else,
    where the first output is a list of scores, how often the answer is the float model's.
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
        """What a file loses on all of the data.

        Raises:
            DataError: no data, or data, labels or function are of no use.
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
                    off = wide - b.astype(np.float64).ravel()
                    noise += float(off @ off)
            if _is_class_scores(before[0]):
                answers.append((before[0].argmax(1), after[0].argmax(1)))
        if not samples:
            raise DataError("the evaluation data is empty; give at least one batch")
        share = noise / signal if signal else 0.0
        found = self._metric(file, answers, samples)
        base = Score(samples, decibels(signal, noise), share)
        if found is None:
            return base
        interval = found.intervals[1]
        return Score(
            samples,
            base.sqnr_db,
            share,
            found.name,
            found.percent,
            found.values[1],
            found.values[0],
            found.drops[1],
            None if interval is None else interval.low,
            None if interval is None else interval.high,
        )

    def _float_outputs(self, index: int, arrays: list[Array]) -> list[Array]:
        if index < len(self._kept):
            return self._kept[index]
        found = self._padding.strip(arrays, run(self._session, arrays))
        self._bytes += sum(a.nbytes for a in found)
        if index == len(self._kept) and self._bytes <= MAX_KEPT:
            self._kept.append(found)
        return found

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
            found = call_metrics(self.function, file, self.where)
            name = next(iter(found))
            if name not in self._reference:
                raise DataError(f"{self.where} does not return '{name}' for every model")
            rows = (self._reference[name], found[name])
            higher = name not in self.lower
            return make_metric(
                name, rows, "user", higher_is_better=higher, confidence=self.confidence
            )
        if self.labels is not None:
            check_labels(self.labels, samples)
        if not answers:
            if self.labels is not None:
                raise DataError(
                    "the first output is no list of scores, so that labels do not fit; use --eval"
                )
            return None
        expected, given = (np.concatenate(column) for column in zip(*answers, strict=True))
        if self.labels is None:
            hits, name = [np.ones(len(given)), given == expected], "agreement with float"
        else:
            hits, name = [expected == self.labels, given == self.labels], "top-1"
        return make_metric(name, hits, "built in", percent=True, confidence=self.confidence)

    @cached_property
    def _reference(self) -> dict[str, Array]:
        assert self.function is not None
        return call_metrics(self.function, self.file, self.where)


def _is_class_scores(output: Array) -> bool:
    return output.ndim == 2 and output.shape[1] > 1 and output.dtype.kind == "f"
