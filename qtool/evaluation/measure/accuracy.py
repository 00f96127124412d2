"""Accuracy of several ONNX files on the same data: metrics, agreement, error, worst samples.

One pass over the data runs every file on each batch and keeps a few numbers per sample, not the
outputs. Metrics and their intervals come from these numbers.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnxruntime.session import run, session
from qtool.core.errors import DataError
from qtool.core.store import Store
from qtool.core.types import Array, Progress
from qtool.distributed import current
from qtool.evaluation.metrics import Interval, Metric, make_metric, share_interval
from qtool.verification.fidelity import decibels
from qtool.verification.model_inputs import Feeder
from qtool.verification.strip_padding import Padding

TOP = 5
WORST = 12
SAVE_EVERY = 5.0


@dataclass(frozen=True)
class WorstSample:
    """A sample with a large error relative to the reference.

    Attributes:
        index: of the sample in the data.
        sqnr_db: of its outputs; None if there is no error.
        expected, predicted: top-1 class of the reference and of the model; None without scores.
        label: true class; None without labels.
    """

    index: int
    sqnr_db: float | None
    expected: int | None
    predicted: int | None
    label: int | None


@dataclass(frozen=True)
class ModelAccuracy:
    """Outputs of a model relative to the reference.

    Attributes:
        agreement: share of samples with the same top-1; None without scores.
        sqnr_db: of all outputs; None if there is no error.
        worst: the samples with the largest relative errors.
    """

    agreement: Interval | None
    sqnr_db: float | None
    worst: tuple[WorstSample, ...]


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of several models on the same samples; `models` starts with the reference."""

    samples: int
    metrics: tuple[Metric, ...]
    models: tuple[ModelAccuracy, ...]


@dataclass(frozen=True, eq=False)
class SampleStatistics:
    """Numbers per sample, for every file.

    Attributes:
        classes: [files, n, 0 to 5] best classes; none if the first output is not scores.
        signal: [n] sum of squares of the outputs of the first file.
        noise: [files, n] sum of squared differences from the first file.
        sizes: of the batches.
    """

    classes: Array
    signal: Array
    noise: Array
    sizes: tuple[int, ...] = ()

    @property
    def samples(self) -> int:
        return len(self.signal)


def measure_outputs(
    files: Sequence[Path],
    data: Iterable[Any],
    *,
    store: Store | None = None,
    progress: Progress = lambda x: x,
) -> SampleStatistics:
    """Run every file on every batch, with default session options; padded positions are ignored.

    Args:
        files: models with the same inputs and outputs; the first is the reference.
        store: for intermediate results, from which an interrupted run resumes if the data is the
            same.

    Raises:
        DataError: no data, or data that does not fit. VerificationError: a file does not run.
    """
    sessions = [session(f) for f in files]
    feeder, padding = Feeder(files[0]), Padding.of_session(sessions[0])
    statistics = _Accumulator(store or Store(), len(files))
    saved = time.monotonic()
    for index, batch in enumerate(progress(data)):
        current().check()
        arrays = feeder.arrays(batch, index)
        if statistics.has(index, arrays):
            continue
        statistics.add([padding.strip(arrays, run(s, arrays)) for s in sessions], arrays)
        if time.monotonic() - saved > SAVE_EVERY:
            statistics.save()
            saved = time.monotonic()
    if not statistics.marks:
        raise DataError("the evaluation data is empty; give at least one batch")
    statistics.save()
    return statistics.measured()


class _Accumulator:
    """Statistics of the batches so far, and a checksum of each batch."""

    def __init__(self, store: Store, files: int) -> None:
        self.store, self.files = store, files
        self.marks: list[int] = []
        self.parts: dict[str, list[Array]] = {"classes": [], "signal": [], "noise": []}
        self.stored: dict[str, Array] | None = store.load("outputs")

    def has(self, index: int, arrays: Sequence[Array]) -> bool:
        """Return True if the stored results have this batch; drop the rest if the data changed."""
        if self.stored is None:
            return False
        marks = self.stored["marks"]
        if index < len(marks) and marks[index] == _checksum(arrays):
            start, stop = (int(self.stored["sizes"][:i].sum()) for i in (index, index + 1))
            self._append(
                self.stored["classes"][:, start:stop],
                self.stored["signal"][start:stop],
                self.stored["noise"][:, start:stop],
                int(marks[index]),
            )
            return True
        self.stored = None
        return False

    def add(self, outputs: Sequence[Sequence[Array]], arrays: Sequence[Array]) -> None:
        reference = outputs[0]
        size = len(reference[0]) if reference[0].ndim else 1
        rows = [[_rows(a, size) for a in own] for own in outputs]
        signal = sum((np.square(a).sum(1) for a in rows[0]), np.zeros(size))
        noise = np.stack(
            [
                sum(
                    (np.square(a - b).sum(1) for a, b in zip(rows[0], r, strict=True)),
                    np.zeros(size),
                )
                for r in rows
            ]
        )
        classes = np.stack([_top_classes(own[0], size) for own in outputs])
        self._append(classes, signal, noise, _checksum(arrays))

    def _append(self, classes: Array, signal: Array, noise: Array, mark: int) -> None:
        for name, array in (("classes", classes), ("signal", signal), ("noise", noise)):
            self.parts[name].append(array)
        self.marks.append(mark)

    def save(self) -> None:
        statistics = self.measured()
        self.store.save(
            "outputs",
            {
                "classes": statistics.classes,
                "signal": statistics.signal,
                "noise": statistics.noise,
                "marks": np.array(self.marks),
                "sizes": np.array(statistics.sizes),
            },
        )

    def measured(self) -> SampleStatistics:
        return SampleStatistics(
            np.concatenate(self.parts["classes"], 1),
            np.concatenate(self.parts["signal"]),
            np.concatenate(self.parts["noise"], 1),
            tuple(len(s) for s in self.parts["signal"]),
        )


def _checksum(arrays: Sequence[Array]) -> int:
    mark = 0
    for array in arrays:
        mark = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, mark)
    return mark


def _rows(array: Array, size: int) -> Array:
    return array.reshape(size, -1).astype(np.float64)


def _top_classes(scores: Array, size: int) -> Array:
    """Return [n, up to 5] best classes, ties in order of class; [n, 0] for other outputs."""
    if scores.ndim != 2 or scores.shape[1] < 2 or scores.dtype.kind != "f":
        return np.zeros((size, 0), np.int32)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
    return order.astype(np.int32)


def summarize(
    measured: SampleStatistics, labels: Array | None, extra: Sequence[Metric] = ()
) -> Accuracy:
    """Return metrics, agreement and worst samples.

    Args:
        labels: [samples] class numbers; the first output must then be [samples, classes] scores.
        extra: the user's metrics, which come first. With them and without labels the outputs are
            not interpreted as class scores: they may be embeddings, for example.

    Raises:
        DataError: wrong number of labels, or the first output is not scores.
    """
    if extra and labels is None:
        measured = replace(measured, classes=measured.classes[:, :, :0])
    metrics = [*extra, *(_built_in(measured, labels) if labels is not None else ())]
    models = tuple(_outcome(measured, i, labels) for i in range(len(measured.noise)))
    return Accuracy(measured.samples, tuple(metrics), models)


def check_labels(labels: Array, samples: int) -> None:
    """Raise DataError unless there is one label per sample."""
    if labels.ndim != 1:
        raise DataError(
            f"the labels have shape {list(labels.shape)}; pass one class number per sample"
        )
    if len(labels) != samples:
        raise DataError(f"{len(labels)} labels for {samples} samples; pass one per sample")


def _built_in(measured: SampleStatistics, labels: Array) -> list[Metric]:
    check_labels(labels, measured.samples)
    if not measured.classes.shape[2]:
        raise DataError(
            "labels need [samples, classes] scores as the first output; use --eval instead"
        )
    hits = measured.classes == labels[None, :, None]
    metrics = [make_metric("top-1", hits[:, :, 0], "built in", percent=True)]
    if hits.shape[2] == TOP and int(measured.classes.max()) >= 2 * TOP:
        metrics.append(make_metric("top-5", hits.any(2), "built in", percent=True))
    return metrics


def _outcome(measured: SampleStatistics, model: int, labels: Array | None) -> ModelAccuracy:
    noise, signal = measured.noise[model], measured.signal
    agreement = None
    if measured.classes.shape[2]:
        same = measured.classes[0, :, 0] == measured.classes[model, :, 0]
        agreement = share_interval(same)
    worst = () if model == 0 else _worst(measured, model, labels)
    return ModelAccuracy(agreement, decibels(float(signal.sum()), float(noise.sum())), worst)


def _worst(measured: SampleStatistics, model: int, labels: Array | None) -> tuple[WorstSample, ...]:
    noise, signal = measured.noise[model], measured.signal
    relative = noise / np.maximum(signal, np.finfo(np.float64).tiny)
    classes = measured.classes
    samples = []
    for i in np.argsort(-relative, kind="stable")[:WORST]:
        scored = bool(classes.shape[2])
        samples.append(
            WorstSample(
                int(i),
                decibels(float(signal[i]), float(noise[i])),
                int(classes[0, i, 0]) if scored else None,
                int(classes[model, i, 0]) if scored else None,
                int(labels[i]) if labels is not None and scored else None,
            )
        )
    return tuple(samples)
