"""Compare a float file with its quantized file, on the data of all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qtool.backends.formats import open_file, runtime_title
from qtool.backends.session import PortInfo
from qtool.core.errors import DataError, VerificationError
from qtool.core.option_names import NATIVE
from qtool.core.progress import no_progress
from qtool.core.records import from_json, to_json
from qtool.core.remedies import DataEdit
from qtool.core.types import Progress
from qtool.distributed import current
from qtool.evaluation.evaluation import Evaluation, make_evaluation
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.latency.decoding import phases
from qtool.evaluation.latency.interleaved_timing import Timing
from qtool.evaluation.measure.accuracy import summarize
from qtool.evaluation.measure.output_pass import (
    Agreements,
    Arrays,
    Reference,
    Yardsticks,
    measure_arrays,
)
from qtool.evaluation.measurement import Measurement, runtime_of
from qtool.evaluation.model_inputs import check_same_inputs, resized
from qtool.evaluation.sharded_accuracy import gather_labels, gather_statistics
from qtool.evaluation.subject import FloatFiles
from qtool.evaluation.user_metrics import user_metrics
from qtool.metrics.metric import Metric


def evaluate_files(
    float_file: Path,
    int8_file: Path,
    data: Iterable[Any],
    labels: ArrayLike | None = None,
    *,
    function: Callable[[Any], Any] | None = None,
    where: str = "the evaluation function",
    lower_is_better: Sequence[str] = (),
    baseline: FloatFiles | None = None,
    threads: int = 1,
    runtime: str = NATIVE,
    seconds: float = 2.0,
    contexts: Sequence[int] | None = None,
    progress: Progress = no_progress,
) -> Evaluation:
    """Run both files in their runtimes on the same batches.

    Args:
        data: batches in the order of `labels`, read once; with several ranks, the share of this
            rank.
        labels: [samples] class numbers; the first output must then be [samples, classes] scores. Or
            numbers to predict, of the shape of the first output. With several ranks: those of the
            share, or of all data, where batch i belongs to rank i modulo the number of ranks.
        function, where, lower_is_better: the user's metrics, see `user_metrics`; rank 0 calls it.
        baseline: files of the float model, among them the one to time; by default `float_file` is
            timed.
        threads, seconds: conditions of each latency, which rank 0 measures on its first sample, or
            its first batch where the files do not run on a sample.
        runtime: see `open_model`.
        contexts: see `measure_outputs`.
        progress: wraps the iterable of batches.

    Raises:
        DataError: no data, data that does not fit, or labels or a function that cannot be used.
        VerificationError: a file does not run.
    """
    files, ranks = (float_file, int8_file), current()
    check_same_inputs(files)
    reference = Reference(float_file, runtime)
    inputs = reference.session.inputs
    stream = Feeder(reference.session).feed(data, progress, ranks.check)
    first = next(stream, None)
    own, yardsticks = None, Yardsticks()
    if first is not None or not ranks.is_distributed:
        batches = stream if first is None else chain([first], stream)
        own = measure_arrays(
            *(files, batches),
            runtime=runtime,
            reference=reference,
            contexts=contexts,
            yardsticks=yardsticks,
        )
    share = None if labels is None else np.asarray(labels)
    numbers, measured = gather_labels(ranks, own, share), gather_statistics(ranks, own)
    if measured is None:
        return from_json(Evaluation, json.loads(ranks.broadcast(None)))
    user: tuple[Metric, ...] = ()
    if function is not None:
        user = user_metrics(function, files, where, lower_is_better, runtime)
    agreements = Agreements() if ranks.is_distributed else yardsticks.agreements()
    accuracy = summarize(measured, numbers, user, agreements=agreements)
    compared = (float_file if baseline is None else baseline.timed, int8_file)
    if first is None:
        raise DataError("rank 0 has no data to time", DataEdit("give at least one batch"))
    timings = _time_first(
        compared, _to_time(inputs, first), threads=threads, runtime=runtime, seconds=seconds
    )
    opened = (open_file(float_file), open_file(int8_file))
    coverages = (None, opened[1].coverage() if opened[1].is_quantized else None)
    source = 0 if baseline is None else baseline.size_bytes
    evaluation = replace(
        make_evaluation(Measurement(opened, accuracy, timings, coverages, float_bytes=source)),
        runtime="" if runtime == NATIVE else runtime_title(runtime),
        baseline=float_file.name if baseline is None else baseline.name,
        timed_in=runtime_of(opened[1]) if runtime == NATIVE else "",
    )
    ranks.broadcast(json.dumps(to_json(evaluation)).encode())
    return evaluation


def _to_time(inputs: Sequence[PortInfo], batch: Arrays) -> list[Arrays]:
    """Return a sample of a batch, as `qtool.quantize_to_file` times, then the batch."""
    ports = zip(inputs, batch, strict=True)
    return [[a[:1] if p.shape and not isinstance(p.shape[0], int) else a for p, a in ports], batch]


def _time_first(
    files: Sequence[Path], batches: Sequence[Arrays], **options: Any
) -> tuple[Timing, ...]:
    """Time the first batch that files run on: where one input holds the number of rows of another,
    they take no part of a batch. options: as for `time_files`."""

    def timings(arrays: Arrays) -> tuple[Timing, ...]:
        inputs = resized(files, arrays)
        return tuple(phase.time(files, **options) for phase in phases(files[0], inputs))

    for arrays in batches[:-1]:
        with suppress(VerificationError):
            return timings(arrays)
    return timings(batches[-1])
