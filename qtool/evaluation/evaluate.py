"""Compare a float model with its int8 file in a few figures: the short form of a report."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtool.backends.onnx.storage import model_files
from qtool.core.errors import DataError
from qtool.core.formats import db, percent, table
from qtool.core.records import from_json, to_json
from qtool.core.types import Array, Progress
from qtool.distributed import current
from qtool.evaluation.latency.interleaved_timing import Latency, median_latency
from qtool.evaluation.measure.accuracy import Accuracy, measure_outputs, summarize
from qtool.evaluation.measure.sharded_accuracy import gather_labels, gather_statistics
from qtool.verification import audit
from qtool.verification.model_inputs import Feeder


@dataclass(frozen=True)
class ModelFigures:
    """Figures of one of the two models.

    Attributes:
        accuracy: top-1, 0 to 1; None without labels.
        size_bytes: of the file and its external data.
        latency_ms: median per batch, in milliseconds.
        integer_mac_share: share of MACs in integer kernels, 0 to 1.
    """

    accuracy: float | None
    size_bytes: int
    latency_ms: float
    integer_mac_share: float


@dataclass(frozen=True)
class Evaluation:
    """A float model and its int8 file on the same data.

    Attributes:
        samples: number of samples.
        batch, threads: of the latency.
        float_, int8: figures of the two models.
        agreement: share of samples with the same top-1; None if the first output is not
            [samples, classes] scores.
        sqnr_db: signal to quantization noise ratio of all outputs; None if they are equal.
        speedup: float latency / int8 latency, the median of paired runs.
    """

    samples: int
    batch: int
    threads: int
    float_: ModelFigures
    int8: ModelFigures
    agreement: float | None
    sqnr_db: float | None
    speedup: float

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = to_json(self)
        return fields

    def __str__(self) -> str:
        sides = (self.float_, self.int8)
        accuracies = ("no labels" if s.accuracy is None else percent(s.accuracy) for s in sides)
        timed = f"latency, batch {self.batch}, {self.threads} thread"
        rows = [
            ("accuracy (top-1)", *accuracies),
            ("size", *(f"{s.size_bytes / 1024:.0f} KiB" for s in sides)),
            (timed, *(f"{s.latency_ms:.3f} ms" for s in sides)),
            ("MACs in integer kernels", *(percent(s.integer_mac_share) for s in sides)),
        ]
        agrees = "" if self.agreement is None else f", same top-1 on {percent(self.agreement)}"
        error = db(self.sqnr_db) + ("" if self.sqnr_db is None else " dB")
        return (
            f"{table(('', 'fp32', 'int8'), rows)}\n\n{self.samples} samples: int8 is "
            f"{self.speedup:.2f}x as fast as fp32{agrees}, output SQNR {error}"
        )


def evaluate_files(
    float_file: Path,
    int8_file: Path,
    data: Iterable[Any],
    labels: Array | None = None,
    *,
    timed: Any = None,
    threads: int = 1,
    seconds: float = 2.0,
    progress: Progress = lambda x: x,
) -> Evaluation:
    """Run both files in ONNX Runtime on the same batches.

    Args:
        data: batches in the order of `labels`, read once; with several ranks, the share of this
            rank.
        labels: [samples] class numbers; the first output must then be [samples, classes] scores.
            With several ranks: those of the share, or of all data, where batch i belongs to rank
            i modulo the number of ranks.
        timed: a batch to time; by default the first.
        threads, seconds: of the latency, which rank 0 measures.

    Raises:
        DataError: no data, data that does not fit, or a wrong number of labels.
        VerificationError: a file does not run.
    """
    files, ranks = (float_file, int8_file), current()
    stream = iter(data)
    first = next(stream, None)
    if first is None and not ranks.is_distributed:
        raise DataError("the evaluation data is empty; give at least one batch")
    own = None
    if first is not None:
        own = measure_outputs(files, itertools.chain([first], stream), progress=progress)
    numbers, measured = gather_labels(ranks, own, labels), gather_statistics(ranks, own)
    if measured is None:
        return from_json(Evaluation, json.loads(ranks.broadcast(None)))
    arrays = Feeder(float_file).arrays(first if timed is None else timed, 0)
    latency = median_latency(files, arrays, threads=threads, seconds=seconds)
    evaluation = _evaluation(files, summarize(measured, numbers), latency, arrays[0], threads)
    ranks.broadcast(json.dumps(to_json(evaluation)).encode())
    return evaluation


def _evaluation(
    files: tuple[Path, Path], measured: Accuracy, latency: Latency, timed: Array, threads: int
) -> Evaluation:
    accuracies = measured.metrics[0].values if measured.metrics else (None, None)
    shares = (0.0, audit(files[1]).share)
    sides = [
        ModelFigures(accuracy, sum(f.stat().st_size for f in model_files(file)), spent, share)
        for accuracy, file, spent, share in zip(
            accuracies, files, latency.milliseconds, shares, strict=True
        )
    ]
    outcome = measured.models[1]
    return Evaluation(
        measured.samples,
        len(timed) if timed.ndim else 1,
        threads,
        sides[0],
        sides[1],
        None if outcome.agreement is None else outcome.agreement.value,
        outcome.sqnr_db,
        latency.ratios[1],
    )
