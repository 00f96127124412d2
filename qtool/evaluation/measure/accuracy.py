"""Accuracy of several ONNX files on the same data: metrics, agreement, error, worst samples.

One pass over the data runs every file on each batch and keeps a few numbers for each sample, not
the outputs; metrics and their intervals come from those.
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
from qtool.evaluation.metrics import Interval, Metric, bootstrap, make_metric
from qtool.verification.fidelity import decibels
from qtool.verification.model_inputs import Feeder
from qtool.verification.strip_padding import Padding

TOP = 5
WORST = 12
SAVE_EVERY = 5.0


@dataclass(frozen=True)
class WorstSample:
    """One of the samples on which a model is furthest from the reference.

    sqnr_db: of its outputs. predicted: the class each of the two gives; label: the true one; None
    where there are no classes or labels.
    """

    index: int
    sqnr_db: float | None
    expected: int | None
    predicted: int | None
    label: int | None


@dataclass(frozen=True)
class ModelAccuracy:
    """A model beside the reference. agreement: share of samples with the same top-1."""

    agreement: Interval | None
    sqnr_db: float | None
    worst: tuple[WorstSample, ...]


@dataclass(frozen=True)
class Accuracy:
    """models: one outcome for each model, that of the reference among them."""

    samples: int
    metrics: tuple[Metric, ...]
    models: tuple[ModelAccuracy, ...]


@dataclass(frozen=True, eq=False)
class SampleStatistics:
    """What is kept of each sample, for every file.

    classes: [files, n, up to 5], empty where the first output is no list of scores. signal: [n].
    noise: [files, n], against the first file. sizes: of the batches.
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
    """Runs every file on every batch, with default session options. What stands on padding does not
    count.

    Args:
        files: models with the same inputs and outputs; the first is the reference.
        store: where the results so far are kept; an interrupted run goes on behind them as long
            as the data is the same.

    Raises:
        DataError: no data, or data that does not fit. VerificationError: a file does not run.
    """
    sessions = [session(f) for f in files]
    feeder, padding = Feeder(files[0]), Padding.of_session(sessions[0])
    kept = _Accumulator(store or Store(), len(files))
    saved = time.monotonic()
    for index, batch in enumerate(progress(data)):
        current().check()
        arrays = feeder.arrays(batch, index)
        if kept.has(index, arrays):
            continue
        kept.add([padding.strip(arrays, run(s, arrays)) for s in sessions], arrays)
        if time.monotonic() - saved > SAVE_EVERY:
            kept.save()
            saved = time.monotonic()
    if not kept.marks:
        raise DataError("the evaluation data is empty; give at least one batch")
    kept.save()
    return kept.measured()


class _Accumulator:
    """Per-sample numbers of the batches so far, and a checksum of each batch."""

    def __init__(self, store: Store, files: int) -> None:
        self.store, self.files = store, files
        self.marks: list[int] = []
        self.parts: dict[str, list[Array]] = {"classes": [], "signal": [], "noise": []}
        self.old: dict[str, Array] | None = store.load("outputs")

    def has(self, index: int, arrays: Sequence[Array]) -> bool:
        """Whether the batch was measured before; forgets the rest where the data has changed."""
        if self.old is None:
            return False
        marks = self.old["marks"]
        if index < len(marks) and marks[index] == _checksum(arrays):
            start, stop = (int(self.old["sizes"][:i].sum()) for i in (index, index + 1))
            self._append(
                self.old["classes"][:, start:stop],
                self.old["signal"][start:stop],
                self.old["noise"][:, start:stop],
                int(marks[index]),
            )
            return True
        self.old = None
        return False

    def add(self, outputs: Sequence[Sequence[Array]], arrays: Sequence[Array]) -> None:
        reference = outputs[0]
        size = len(reference[0]) if reference[0].ndim else 1
        rows = [[_rows(a, size) for a in found] for found in outputs]
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
        classes = np.stack([_top_classes(found[0], size) for found in outputs])
        self._append(classes, signal, noise, _checksum(arrays))

    def _append(self, classes: Array, signal: Array, noise: Array, mark: int) -> None:
        for name, array in (("classes", classes), ("signal", signal), ("noise", noise)):
            self.parts[name].append(array)
        self.marks.append(mark)

    def save(self) -> None:
        found = self.measured()
        self.store.save(
            "outputs",
            {
                "classes": found.classes,
                "signal": found.signal,
                "noise": found.noise,
                "marks": np.array(self.marks),
                "sizes": np.array(found.sizes),
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
    """The five best classes of each sample, the first of equals first; none for other outputs."""
    if scores.ndim != 2 or scores.shape[1] < 2 or scores.dtype.kind != "f":
        return np.zeros((size, 0), np.int32)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
    return order.astype(np.int32)


def summarize(
    measured: SampleStatistics, labels: Array | None, extra: Sequence[Metric] = ()
) -> Accuracy:
    """Metrics, agreement and worst samples.

    Args:
        labels: [samples] class numbers; the first output is then scores [samples, classes].
        extra: the user's metrics, which come first. With them and without labels the outputs are
            not taken for scores of classes: they may be anything, an embedding for one.

    Raises:
        DataError: another number of labels, or no scores to compare them with.
    """
    if extra and labels is None:
        measured = replace(measured, classes=measured.classes[:, :, :0])
    metrics = [*extra, *(_built_in(measured, labels) if labels is not None else ())]
    models = tuple(_outcome(measured, i, labels) for i in range(len(measured.noise)))
    return Accuracy(measured.samples, tuple(metrics), models)


def check_labels(labels: Array, samples: int) -> None:
    """Raises DataError unless there is one label for each sample."""
    if labels.ndim != 1:
        raise DataError(
            f"the labels have shape {list(labels.shape)}; give one class number a sample"
        )
    if len(labels) != samples:
        raise DataError(f"{len(labels)} labels for {samples} samples; give one for each")


def _built_in(measured: SampleStatistics, labels: Array) -> list[Metric]:
    check_labels(labels, measured.samples)
    if not measured.classes.shape[2]:
        raise DataError(
            "the first output is no list of scores, so that labels do not fit; use --eval"
        )
    hits = measured.classes == labels[None, :, None]
    found = [make_metric("top-1", hits[:, :, 0], "built in", percent=True)]
    if hits.shape[2] == TOP and int(measured.classes.max()) >= 2 * TOP:
        found.append(make_metric("top-5", hits.any(2), "built in", percent=True))
    return found


def _outcome(measured: SampleStatistics, model: int, labels: Array | None) -> ModelAccuracy:
    noise, signal = measured.noise[model], measured.signal
    agreement = None
    if measured.classes.shape[2]:
        same = measured.classes[0, :, 0] == measured.classes[model, :, 0]
        agreement = bootstrap(same.astype(np.float64))
    worst = () if model == 0 else _worst(measured, model, labels)
    return ModelAccuracy(agreement, decibels(float(signal.sum()), float(noise.sum())), worst)


def _worst(measured: SampleStatistics, model: int, labels: Array | None) -> tuple[WorstSample, ...]:
    noise, signal = measured.noise[model], measured.signal
    relative = noise / np.maximum(signal, np.finfo(np.float64).tiny)
    classes = measured.classes
    found = []
    for i in np.argsort(-relative, kind="stable")[:WORST]:
        scored = bool(classes.shape[2])
        found.append(
            WorstSample(
                int(i),
                decibels(float(signal[i]), float(noise[i])),
                int(classes[0, i, 0]) if scored else None,
                int(classes[model, i, 0]) if scored else None,
                int(labels[i]) if labels is not None and scored else None,
            )
        )
    return tuple(found)
