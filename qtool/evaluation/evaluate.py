"""Compare a float file with its quantized file, on the data of all ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from qtool.backends.formats import open_file, quantization_warnings, runtime_title
from qtool.backends.session import PortInfo
from qtool.core.errors import DataError
from qtool.core.option_names import NATIVE
from qtool.core.progress import no_progress
from qtool.core.records import from_json, to_json
from qtool.core.remedies import DataEdit
from qtool.core.types import Progress
from qtool.distributed import current
from qtool.evaluation.evaluation import Evaluation, ModelFacts
from qtool.evaluation.feeder import Arrays
from qtool.evaluation.labelled_data import LabelledData
from qtool.evaluation.latency.decoding import time_first
from qtool.evaluation.latency.interleaved_timing import Timing
from qtool.evaluation.machine import this_machine
from qtool.evaluation.measure.accuracy import Accuracy, summarize
from qtool.evaluation.measure.output_pass import (
    Agreements,
    Reference,
    Yardsticks,
    measure_arrays,
)
from qtool.evaluation.model_inputs import check_same_inputs
from qtool.evaluation.sharded_accuracy import gather_labels, gather_statistics
from qtool.evaluation.subject import Subject


def evaluate_files(
    subjects: Sequence[Subject],
    data: LabelledData,
    *,
    threads: int = 1,
    runtime: str = NATIVE,
    seconds: float = 2.0,
    progress: Progress = no_progress,
) -> Evaluation:
    """Run both files in their runtimes on the same batches.

    Args:
        subjects: the float model and the quantized one.
        data: batches, read once; with several ranks, the share of this rank. The labels are those
            of the share, or of all data, where batch i belongs to rank i modulo the number of
            ranks. Rank 0 calls the user's function.
        threads, seconds: conditions of each latency, which rank 0 measures on its first sample, or
            its first batch where the files do not run on a sample.
        runtime: see `open_model`.
        progress: wraps the iterable of batches.

    Raises:
        DataError: no data, data that does not fit, or labels or a function that cannot be used.
        VerificationError: a file does not run.
    """
    files, ranks = [s.file for s in subjects], current()
    check_same_inputs(files)
    reference = Reference(files[0], runtime)
    inputs = reference.session.inputs
    stream = data.arrays(reference.session, progress)
    first = next(stream, None)
    own, yardsticks = None, Yardsticks()
    if first is not None or not ranks.is_distributed:
        batches = stream if first is None else chain([first], stream)
        how: dict[str, Any] = {"contexts": data.contexts, "yardsticks": yardsticks}
        own = measure_arrays(reference, files[1:], batches, **how)
    share = None if data.labels is None else np.asarray(data.labels)
    numbers, measured = gather_labels(ranks, own, share), gather_statistics(ranks, own)
    if measured is None:
        return from_json(Evaluation, json.loads(ranks.broadcast(None)))
    user = data.metrics(files, runtime)
    agreements = Agreements() if ranks.is_distributed else yardsticks.agreements()
    accuracy = summarize(measured, numbers, user, agreements=agreements)
    if first is None:
        raise DataError("rank 0 has no data to time", DataEdit("give at least one batch"))
    timed = [s.timed or s.file for s in subjects]
    how = {"threads": threads, "runtime": runtime, "seconds": seconds}
    timings, _ = time_first(timed, [_sample_of(inputs, first), first], **how)
    evaluation = _evaluation(subjects, accuracy, timings, runtime)
    ranks.broadcast(json.dumps(to_json(evaluation)).encode())
    return evaluation


def _sample_of(inputs: Sequence[PortInfo], batch: Arrays) -> Arrays:
    """Return a sample of a batch, as `qtool.quantize_to_file` times."""
    ports = zip(inputs, batch, strict=True)
    return [a[:1] if p.shape and not isinstance(p.shape[0], int) else a for p, a in ports]


def _evaluation(
    subjects: Sequence[Subject], accuracy: Accuracy, timings: tuple[Timing, ...], runtime: str
) -> Evaluation:
    opened = open_file(subjects[1].file)
    own = ModelFacts.of(subjects[1], opened.coverage() if opened.is_quantized else None, False)
    return Evaluation(
        models=(
            ModelFacts.of(subjects[0], None, True),
            own if runtime == NATIVE else replace(own, timed=""),
        ),
        machine=this_machine(),
        accuracy=replace(accuracy, warnings=(*quantization_warnings(opened), *accuracy.warnings)),
        latency=timings,
        runtime="" if runtime == NATIVE else runtime_title(runtime),
    )
