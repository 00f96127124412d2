"""Measure everything a report holds; an interrupted run resumes from the stored measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.model_file import ModelFile
from qtool.backends.open_files import open_model
from qtool.backends.session import fit_channels
from qtool.backends.table import open_file
from qtool.conversion.quantized import Quantized
from qtool.core.data import Batch, to_tensor, whole_texts
from qtool.core.errors import KernelError, QtoolError
from qtool.core.progress import Bars, no_bars
from qtool.core.store import Store
from qtool.evaluation import plan_summary
from qtool.evaluation.feeder import measure_outputs
from qtool.evaluation.file_report import (
    TIMED_SAMPLES,
    coverage_of,
    digest_of,
    make_report,
    measure_latencies,
)
from qtool.evaluation.label_checks import check_labels_of
from qtool.evaluation.measure.accuracy import Accuracy, WorstSample, summarize
from qtool.evaluation.measure.layer_errors import Sensitivity
from qtool.evaluation.measure.output_pass import FirstBatches, Reference
from qtool.evaluation.measurement import Measurement
from qtool.evaluation.model_inputs import check_same_inputs
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.report.report import Report
from qtool.evaluation.sensitivity import measure_sensitivity
from qtool.evaluation.subject import Subject
from qtool.evaluation.user_metrics import over_data, user_metrics
from qtool.frontends.data.sample_names import SampleNames
from qtool.metrics.metric import check_drop
from qtool.verification import Exactness, planned_coverage

EXACT_SAMPLES = 64


def build_report(
    subjects: Sequence[Subject],
    data: Iterable[Any],
    options: ReportOptions,
    *,
    quantized: Quantized | str,
    folder: Path | None = None,
    bars: Bars = no_bars,
) -> Report:
    """Measure models on the same data and return the report.

    Args:
        subjects: files with the same inputs; the first is the reference.
        data: batches, in the order of the labels.
        quantized: the quantized model of the second file, or why its layers cannot be measured.
        folder: folder for intermediate results; the same run started again resumes from there.
        bars: returns a progress bar for a title and a length.

    Raises:
        DataError: data, labels or the evaluation function cannot be used.
        VerificationError: a file does not run.
    """
    files = [s.file for s in subjects]
    check_same_inputs(files)
    if options.function is not None:
        function, data, labels = over_data(options.function, data, options.labels)
        options = replace(options, function=function, labels=labels)
    check_options(data, options)
    data = whole_texts(data)
    opened = [open_file(f) for f in files]
    store = Store(folder, digest_of(opened, options))
    reference = Reference(files[0])
    first = FirstBatches(options.samples, reference.session.inputs)
    bar = bars("evaluating", len(data) if isinstance(data, Sized) else None)
    measured = measure_outputs(
        files, data, reference=reference, first=first, store=store, progress=bar
    )
    names = [s.name for s in subjects]
    accuracy = summarize(measured, options.labels, names=names)
    if options.function is None and accuracy.metrics:
        check_drop(options.goals.drop, accuracy.metrics[0].percent)
    coverages = [coverage_of(store, i, f) for i, f in enumerate(opened)]
    if len(opened) > 1 and not opened[1].runs_here and isinstance(quantized, Quantized):
        coverages[1] = planned_coverage(quantized.plan)
    exact = (None, *(_exactness(store, i, f, first) for i, f in enumerate(opened[1:], 1)))
    batch = first.joined(TIMED_SAMPLES)
    latency, profile = measure_latencies(store, subjects, batch, options, bars)
    layers, note = (
        (None, quantized)
        if isinstance(quantized, str)
        else _layers(store, quantized, _named_batches(first), options, bars)
    )
    if options.function is not None:
        user = user_metrics(options.function, files, options.where, options.lower_is_better)
        accuracy = summarize(measured, options.labels, user, names)
    accuracy = _named(accuracy, SampleNames.of(data))
    results = Measurement(
        tuple(opened), accuracy, latency, tuple(coverages), exact, subjects[0].size_bytes
    )
    fields = {} if isinstance(quantized, str) else _plan_fields(quantized, layers)
    return make_report(
        subjects, results, profile, options, layers=layers, layers_note=note, **fields
    )


def _named(accuracy: Accuracy, names: SampleNames) -> Accuracy:
    """Return the accuracy with the names and thumbnails that the data has of the worst samples."""

    def named(sample: WorstSample) -> WorstSample:
        return replace(
            sample,
            name=names.sample(sample.index),
            thumbnail=names.thumbnail(sample.index),
            expected_name=names.class_(sample.expected),
            predicted_name=names.class_(sample.predicted),
            label_name=names.class_(sample.label),
        )

    models = (replace(m, worst=tuple(map(named, m.worst))) for m in accuracy.models)
    return replace(accuracy, models=tuple(models))


def check_options(data: Iterable[Any], options: ReportOptions) -> None:
    """Check labels and goals before the work, as far as that can be done.

    Raises:
        DataError: the data has a known length, and another number of labels.
        OptionError: the goal for top-1 cannot be missed.
    """
    if options.function is None and np.asarray(options.labels).dtype.kind in "biu":
        check_drop(options.goals.drop, percent=True)
    check_labels_of(options.labels, data)


def _exactness(store: Store, index: int, file: ModelFile, first: FirstBatches) -> Exactness | None:
    """Return None if the file is not quantized or the integer engine lacks a kernel for it."""
    if not file.is_quantized:
        return None
    try:
        return store.load_or_make(
            f"exactness{index}",
            Exactness,
            lambda: file.compare_codes(_in_layout_of(file, first.heads(EXACT_SAMPLES))),
        )
    except KernelError:
        return None


def _in_layout_of(
    file: ModelFile, batches: Iterable[list[np.ndarray[Any, Any]]]
) -> Iterator[list[np.ndarray[Any, Any]]]:
    """Yield batches with the channels of images where a file has them."""
    inputs = open_model(file.path).inputs
    for arrays in batches:
        yield [fit_channels(a, i.shape) for a, i in zip(arrays, inputs, strict=True)]


def _named_batches(first: FirstBatches) -> list[Batch]:
    return [Batch((), {n: to_tensor(a) for n, a in each.items()}) for each in first.by_name()]


def _layers(
    store: Store,
    quantized: Quantized,
    batches: Sequence[Batch],
    options: ReportOptions,
    bars: Bars,
) -> tuple[Sensitivity | None, str]:
    bar = bars("measuring layers", None)
    try:
        return measure_sensitivity(
            quantized, batches, budget=options.budget, store=store, progress=bar
        ), ""
    except QtoolError as error:
        return None, str(error)


def _plan_fields(quantized: Quantized, layers: Sensitivity | None) -> dict[str, Any]:
    """Return the fields of a report that come from the plan."""
    measured = layers.layers if layers else ()
    histograms = {e.tensor: e.activation for e in measured if e.activation}
    return {
        "edges": plan_summary.edge_facts(quantized, histograms),
        "notes": tuple(quantized.notes),
        "rewrites": quantized.plan.rewrites,
        "plan": plan_summary.plan_rows(quantized),
    }
