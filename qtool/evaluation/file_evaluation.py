"""Comparison of a quantized file with a float file on arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from qtool.backends.open_files import open_model, open_readable, runtime_title
from qtool.core.errors import DataError
from qtool.core.option_names import NATIVE
from qtool.core.remedies import DataEdit
from qtool.evaluation.evaluation import Evaluation, make_evaluation
from qtool.evaluation.latency.decoding import phases
from qtool.evaluation.measure.accuracy import summarize
from qtool.evaluation.measure.input_arrays import input_arrays
from qtool.evaluation.measure.output_pass import Reference, measure_arrays
from qtool.evaluation.measurement import Measurement
from qtool.evaluation.model_inputs import check_same_inputs, resized
from qtool.metrics.labels import check_no_names


def evaluate_arrays(
    float_file: Path,
    int8_file: Path,
    data: Iterable[Any],
    labels: ArrayLike | None = None,
    *,
    threads: int = 1,
    runtime: str = NATIVE,
    seconds: float = 2.0,
) -> Evaluation:
    """Run both files in their runtimes on the same batches.

    Args:
        float_file, int8_file: files with the same inputs and outputs.
        data: batches of arrays, see `input_arrays`.
        labels: [samples] class numbers; the first output must then be [samples, classes] scores.
        threads, seconds: conditions of each latency, which is measured on the first batch.
        runtime: see `open_model`.

    Raises:
        DataError: no data, or data or labels that do not fit.
        VerificationError: a file does not run.
    """
    files = (float_file, int8_file)
    check_same_inputs(files)
    if labels is not None:
        check_no_names(labels)
    reference = Reference(float_file, runtime)
    stream = input_arrays(open_model(float_file), data)
    first = next(stream, None)
    if first is None:
        raise DataError("the evaluation data is empty", DataEdit("give at least one batch"))
    measured = measure_arrays(
        files, itertools.chain([first], stream), runtime=runtime, reference=reference
    )
    timings = tuple(
        phase.time(files, threads=threads, runtime=runtime, seconds=seconds)
        for phase in phases(float_file, resized(files, first))
    )
    opened = (open_readable(float_file), open_readable(int8_file))
    coverages = (None, opened[1].coverage() if opened[1].is_quantized else None)
    accuracy = summarize(measured, labels)
    result = make_evaluation(Measurement(opened, accuracy, timings, coverages))
    return replace(
        result,
        runtime="" if runtime == NATIVE else runtime_title(runtime),
        baseline=float_file.name,
        timed_in="" if runtime != NATIVE else _place(int8_file),
    )


def _place(file: Path) -> str:
    title = runtime_title(NATIVE, file.suffix)
    return f"in {title}" if title else ""
