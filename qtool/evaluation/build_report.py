"""Measure everything a report holds; an interrupted run resumes from the stored measurements."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
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
from qtool.evaluation.baseline import runtime_of
from qtool.evaluation.feeder import check_label_count, measure_outputs
from qtool.evaluation.latency.decoding import Phase, phases
from qtool.evaluation.latency.interleaved_timing import Timing
from qtool.evaluation.latency.node_times import Profile
from qtool.evaluation.machine import this_machine
from qtool.evaluation.measure.accuracy import (
    Accuracy,
    WorstSample,
    summarize,
)
from qtool.evaluation.measure.layer_errors import Sensitivity
from qtool.evaluation.measure.output_pass import FirstBatches, Reference
from qtool.evaluation.measurement import Measurement
from qtool.evaluation.metrics import check_drop
from qtool.evaluation.model_inputs import check_same_inputs, resized
from qtool.evaluation.options import Goals, ReportOptions
from qtool.evaluation.report.ranking import best_model
from qtool.evaluation.report.report import SCHEMA, ModelFacts, Report
from qtool.evaluation.report.verdict import Purpose, make_verdict
from qtool.evaluation.sensitivity import measure_sensitivity
from qtool.evaluation.subject import Subject
from qtool.evaluation.user_metrics import over_data, user_metrics
from qtool.frontends.data.sample_names import SampleNames
from qtool.verification import Coverage, Exactness, planned_coverage

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
    store = Store(folder, _digest(opened, options))
    reference = Reference(files[0])
    first = FirstBatches(options.samples, reference.session.inputs)
    bar = bars("evaluating", len(data) if isinstance(data, Sized) else None)
    measured = measure_outputs(
        files, data, reference=reference, first=first, store=store, progress=bar
    )
    accuracy = summarize(measured, options.labels)
    if options.function is None and accuracy.metrics:
        check_drop(options.goals.drop, accuracy.metrics[0].percent)
    coverages = [_coverage(store, i, f) for i, f in enumerate(opened)]
    if len(opened) > 1 and not opened[1].runs_here and isinstance(quantized, Quantized):
        coverages[1] = planned_coverage(quantized.plan)
    exact = (None, *(_exactness(store, i, f, first) for i, f in enumerate(opened[1:], 1)))
    batch = first.joined(EXACT_SAMPLES)
    latency, profile = _latencies(store, subjects, batch, options, bars)
    layers, note = (
        (None, quantized)
        if isinstance(quantized, str)
        else _layers(store, quantized, _named_batches(first), options, bars)
    )
    if options.function is not None:
        user = user_metrics(options.function, files, options.where, options.lower_is_better)
        accuracy = summarize(measured, options.labels, user)
    accuracy = _named(accuracy, SampleNames.of(data))
    results = Measurement(
        tuple(opened), accuracy, latency, tuple(coverages), exact, subjects[0].size_bytes
    )
    models = tuple(
        _facts(subject, opened[i], results, i, options.goals) for i, subject in enumerate(subjects)
    )
    return Report(
        schema=SCHEMA,
        title=options.title,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        models=models,
        machine=this_machine(),
        accuracy=accuracy,
        latency=latency,
        profile=profile,
        layers=layers,
        layers_note=note,
        best=best_model(models, latency),
        **_plan_fields(quantized, layers, subjects, coverages, options),
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


def _digest(files: Sequence[ModelFile], options: ReportOptions) -> str:
    digest = hashlib.sha256(options.mark.encode())
    for part in (part for file in files for part in file.parts):
        with part.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]


def check_options(data: Iterable[Any], options: ReportOptions) -> None:
    """Check labels and goals before the work, as far as that can be done.

    Raises:
        DataError: the data has a known length, and another number of labels.
        OptionError: the goal for top-1 cannot be missed.
    """
    if options.function is None and np.asarray(options.labels).dtype.kind in "biu":
        check_drop(options.goals.drop, percent=True)
    check_label_count(options.labels, data)


def _coverage(store: Store, index: int, file: ModelFile) -> Coverage:
    """Return the audit; in a file without quantized tensors no operator counts as integer."""
    coverage = store.load_or_make(f"coverage{index}", Coverage, file.coverage)
    if file.is_quantized:
        return coverage
    return replace(coverage, rows=tuple(replace(row, integer=False) for row in coverage.rows))


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


def _latencies(
    store: Store,
    subjects: Sequence[Subject],
    batch: Sequence[np.ndarray[Any, Any]],
    options: ReportOptions,
    bars: Bars,
) -> tuple[tuple[Timing, ...], Profile | None]:
    files = [s.timed for s in subjects]
    pairs = [(b, t) for t in options.threads for b in options.batch_sizes]
    timings: dict[tuple[int, int, str], Timing] = {}
    last: tuple[Phase, Timing] | None = None
    for size, threads in bars("timing", len(pairs))(pairs):
        inputs = resized(files, batch, size)
        for phase in phases(files[0], inputs):
            key = (len(inputs[0]) if inputs[0].ndim else 1, threads, phase.name)
            if key not in timings:  # a file with a fixed batch size has one of them
                mark = "-".join(filter(None, ("latency", *map(str, key))))
                time = partial(phase.time, files, threads=threads, seconds=options.seconds)
                timings[key] = store.load_or_make(mark, Timing, time)
                last = phase, timings[key]
    if last is None:
        return (), None
    phase, timing = last
    profile = store.load_or_make(
        f"profile-{timing.batch}-{timing.threads}-{timing.phase}",
        Profile,
        partial(phase.profile, [s.profiled for s in subjects], [s.name for s in subjects], timing),
    )
    return tuple(timings.values()), profile


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


def _facts(
    subject: Subject, file: ModelFile, measured: Measurement, i: int, goals: Goals
) -> ModelFacts:
    coverage, exact = measured.coverages[i], measured.exactness[i]
    assert coverage is not None
    purpose = _purpose(file, measured.size(i) / measured.size(0)) if i else Purpose()
    share, weight_share, unknown = measured.shares(i)
    verdict = (
        make_verdict(measured.accuracy, i, measured.timings, share, exact, goals, purpose, unknown)
        if i
        else None
    )
    return ModelFacts(
        subject.name,
        subject.file.name,
        subject.origin,
        measured.size(i),
        share,
        coverage.macs,
        len(coverage.rows),
        len(coverage.rows) - len(coverage.float_rows),
        exact,
        verdict,
        purpose.target,
        purpose.mode,
        purpose.runs_here,
        file.deployment() if i else None,
        weight_share,
        runtime_of(file) if i else subject.timed_name,
        unknown,
    )


def _purpose(file: ModelFile, size: float) -> Purpose:
    """Return what a file is for, by the metadata that qtool wrote."""
    conversion = file.conversion()
    if conversion is None:
        return Purpose(size=size)
    info = conversion.info
    return Purpose(info.target, info.recipe.mode, file.runs_here, size)


def _plan_fields(
    quantized: Quantized | str,
    layers: Sensitivity | None,
    subjects: Sequence[Subject],
    coverages: Sequence[Coverage],
    options: ReportOptions,
) -> dict[str, Any]:
    """Return the fields of a report that come from the plan and the audit."""
    coverage_of = zip(subjects[1:], coverages[1:], strict=True)
    fields: dict[str, Any] = {
        "float_operators": tuple(
            o for s, c in coverage_of for o in plan_summary.float_operators(s.name, c)
        ),
        "rewrites": (),
        "edges": (),
        "notes": (),
        "plan": (),
    }
    if isinstance(quantized, str):
        return fields
    measured = layers.layers if layers else ()
    histograms = {e.tensor: e.activation for e in measured if e.activation}
    return fields | {
        "edges": plan_summary.edge_facts(quantized, histograms),
        "notes": tuple(quantized.notes),
        "rewrites": quantized.plan.rewrites,
        "plan": plan_summary.plan_rows(quantized),
    }
