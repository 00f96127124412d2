"""Compare a float file with its quantized file, on the data of all ranks."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from qtool.backends.formats import open_file, runtime_title, warnings_on_files
from qtool.backends.session import PortInfo
from qtool.core.errors import DataError
from qtool.core.option_names import NATIVE
from qtool.core.progress import no_progress
from qtool.core.records import from_json, to_json
from qtool.core.remedies import CallEdit, DataEdit
from qtool.core.types import Array, Progress
from qtool.distributed import Ranks, current, interleave
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
from qtool.evaluation.subject import Subject
from qtool.metrics.sample_statistics import SampleStatistics


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
        own = measure_arrays(reference, files[1:], batches, yardsticks=yardsticks)
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
    how: dict[str, Any] = {"threads": threads, "runtime": runtime, "seconds": seconds}
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
    warnings = warnings_on_files(opened, subjects[0].timed or subjects[0].file)
    own = ModelFacts.of(subjects[1], opened.coverage() if opened.is_quantized else None, False)
    return Evaluation(
        models=(
            ModelFacts.of(subjects[0], None, True),
            own if runtime == NATIVE else replace(own, timed=""),
        ),
        machine=this_machine(),
        accuracy=replace(accuracy, warnings=(*warnings, *accuracy.warnings)),
        latency=timings,
        runtime="" if runtime == NATIVE else runtime_title(runtime),
    )


def gather_statistics(ranks: Ranks, own: SampleStatistics | None) -> SampleStatistics | None:
    """Return the statistics of all ranks on rank 0, None on the others.

    Batch i belongs to rank i modulo the number of ranks.

    Args:
        own: statistics of this rank; None if it had no data.

    Raises:
        DataError: no rank had data.
    """
    if not ranks.is_distributed:
        return own
    shares = ranks.gather(b"" if own is None else _saved(**own.arrays()), 0)
    if ranks.rank:
        return None
    parts = [SampleStatistics.from_arrays(_loaded(share)).by_batch() for share in shares if share]
    ordered = interleave(parts)
    if not ordered:
        raise DataError("the evaluation data is empty", DataEdit("give at least one batch"))
    return SampleStatistics.joined(ordered)


def gather_labels(ranks: Ranks, own: SampleStatistics | None, labels: Array | None) -> Array | None:
    """Return the labels of all data in its order, on all ranks.

    Args:
        labels: those of all data, or those of the share of this rank.

    Raises:
        DataError: some ranks have labels and others have none.
    """
    if not ranks.is_distributed:
        return labels
    mine = own.sizes if own is not None else ()
    kinds = ranks.all_gather(_label_kind(labels, sum(mine)))
    if "none" in kinds:
        if set(kinds) != {"none"}:
            raise DataError(
                f"rank {kinds.index('none')} has no labels",
                CallEdit("pass labels on all ranks or on none"),
            )
        return None
    assert labels is not None
    if "all" in kinds:
        return labels
    cut = np.split(labels, np.cumsum(mine)[:-1]) if mine else []
    packed = [
        ranks.broadcast(_saved(*cut) if ranks.rank == r else None, r) for r in range(ranks.size)
    ]
    return np.concatenate(interleave([list(_loaded(share).values()) for share in packed]))


def _label_kind(labels: Array | None, samples: int) -> str:
    if labels is None:
        return "none"
    return "share" if labels.ndim and len(labels) == samples else "all"


def _saved(*arrays: Array, **named: Array) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, *arrays, **named)  # type: ignore[arg-type]  # no name is `allow_pickle`
    return buffer.getvalue()


def _loaded(data: bytes) -> Mapping[str, Array]:
    return np.load(io.BytesIO(data), allow_pickle=False)  # type: ignore[no-any-return]
