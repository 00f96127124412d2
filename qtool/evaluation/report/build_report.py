"""Measure everything a report holds; an interrupted run resumes from the stored measurements."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.model_file import ModelFile
from qtool.backends.table import open_file
from qtool.conversion.quantized import Quantized
from qtool.core.data import Batch, to_batch, to_tensor, whole_texts
from qtool.core.data.array_files import ArrayFiles
from qtool.core.errors import DataError, KernelError, QtoolError
from qtool.core.progress import Bars, no_bars
from qtool.core.store import Store
from qtool.evaluation.latency.baseline import one_run, runtime_of
from qtool.evaluation.latency.decoding import Phase, phases
from qtool.evaluation.latency.interleaved_timing import Timing
from qtool.evaluation.latency.node_times import profile_nodes, sums_that_differ
from qtool.evaluation.machine import this_machine
from qtool.evaluation.measure.accuracy import (
    Accuracy,
    WorstSample,
    check_labels,
    measure_outputs,
    summarize,
)
from qtool.evaluation.measure.sensitivity import Sensitivity, measure_sensitivity
from qtool.evaluation.metrics import check_drop, user_metrics
from qtool.evaluation.model_inputs import Feeder, check_same_inputs, resized
from qtool.evaluation.options import Goals, ReportOptions
from qtool.evaluation.report import plan_summary
from qtool.evaluation.report.ranking import best_model
from qtool.evaluation.report.report import SCHEMA, ModelFacts, Profile, Report
from qtool.evaluation.report.subject import Subject
from qtool.evaluation.report.verdict import Purpose, make_verdict
from qtool.frontends.data.sample_names import SampleNames
from qtool.verification import Coverage, Exactness, planned_coverage

EXACT_SAMPLES = 64

Arrays = list[np.ndarray[Any, Any]]
"""A batch: an array per input."""


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
        folder: for intermediate results; the same run started again resumes from there.
        bars: returns a progress bar for a title and a length.

    Raises:
        DataError: data, labels or the evaluation function cannot be used.
        VerificationError: a file does not run.
    """
    files = [s.file for s in subjects]
    check_same_inputs(files)
    check_options(data, options)
    data = whole_texts(data)
    opened = [open_file(f) for f in files]
    store = Store(folder, _digest(opened, options))
    first = _FirstSamples(options.samples)
    total = len(data) if isinstance(data, Sized) else None
    measured = measure_outputs(
        files, first.watch(data), store=store, progress=bars("evaluating", total)
    )
    accuracy = summarize(measured, options.labels)
    if options.function is None and accuracy.metrics:
        check_drop(options.goals.drop, accuracy.metrics[0].percent)
    coverages = [_coverage(store, i, f) for i, f in enumerate(opened)]
    if len(opened) > 1 and not opened[1].runs_here and isinstance(quantized, Quantized):
        coverages[1] = planned_coverage(quantized.plan)
    parts = first.parts(Feeder(files[0]))
    exact = [None, *(_exactness(store, i, f, parts) for i, f in enumerate(opened[1:], 1))]
    batch = first.joined(Feeder(files[0]), parts)
    latency, profile = _latencies(store, subjects, batch, options, bars)
    layers, note = _layers(store, quantized, first.batches, options, bars)
    if options.function is not None:
        user = user_metrics(options.function, files, options.where, options.lower_is_better)
        accuracy = summarize(measured, options.labels, user)
    accuracy = _named(accuracy, SampleNames.of(data))
    models = _models(subjects, opened, coverages, exact, accuracy, latency, options.goals)
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


class _FirstSamples:
    """The first samples of the data, kept for later measurements."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.items: list[Any] = []
        self.batches: list[Batch] = []

    def watch(self, data: Iterable[Any]) -> Iterator[Any]:
        if isinstance(data, str | bytes) or not hasattr(data, "__iter__"):
            raise DataError(f"data of type {type(data).__name__} is not an iterable of batches")
        kept = 0
        for item in data:
            if kept < self.samples or not self.items:
                self.items.append(item)
                self.batches.append(to_batch(item))
                kept += self.batches[-1].size
            yield item

    def parts(self, feeder: Feeder) -> list[Arrays]:
        """Return the first batches of equal shapes, EXACT_SAMPLES or more if there are as many."""
        parts: list[Arrays] = []
        for index, item in enumerate(self.items):
            arrays = feeder.arrays(item, index)
            if parts and [a.shape[1:] for a in arrays] != [a.shape[1:] for a in parts[0]]:
                break
            parts.append(arrays)
            if not arrays[0].ndim or sum(len(p[0]) for p in parts) >= EXACT_SAMPLES:
                break
        self.batches = [self._as_inputs(feeder, i, item) for i, item in enumerate(self.items)]
        return parts

    def joined(self, feeder: Feeder, parts: Sequence[Arrays]) -> Arrays:
        """Return these batches as one, or the first if the batch size is fixed."""
        fixed = any(i.shape and isinstance(i.shape[0], int) for i in feeder.inputs)
        if fixed or not parts[0][0].ndim:
            return parts[0]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

    def _as_inputs(self, feeder: Feeder, index: int, item: Any) -> Batch:
        """Return the batch by the names of the inputs, without other items such as labels."""
        arrays = zip(feeder.inputs, feeder.arrays(item, index), strict=True)
        return Batch((), {i.name: to_tensor(array) for i, array in arrays})


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
    if options.labels is not None and options.function is None:
        check_drop(options.goals.drop, percent=True)
    if options.labels is not None and isinstance(data, ArrayFiles | list | tuple):
        check_labels(options.labels, sum(to_batch(item).size for item in data))


def _coverage(store: Store, index: int, file: ModelFile) -> Coverage:
    """Return the audit; in a file without quantized tensors no operator counts as integer."""
    coverage = store.load_or_make(f"coverage{index}", Coverage, file.coverage)
    if file.is_quantized:
        return coverage
    return replace(coverage, rows=tuple(replace(row, integer=False) for row in coverage.rows))


def _exactness(
    store: Store, index: int, file: ModelFile, parts: Sequence[Arrays]
) -> Exactness | None:
    """Return None if the file is not quantized or the integer engine lacks a kernel for it.

    Batches stay as they are: with cached tokens, attention kernels take one text at a time.
    """
    if not file.is_quantized:
        return None
    try:
        return store.load_or_make(
            f"exactness{index}", Exactness, lambda: file.compare_codes(_heads(parts))
        )
    except KernelError:
        return None


def _heads(parts: Sequence[Arrays]) -> Iterator[Arrays]:
    """Yield EXACT_SAMPLES samples of batches."""
    left = EXACT_SAMPLES
    for part in parts:
        yield [a[:left] if a.ndim else a for a in part]
        left -= len(part[0]) if part[0].ndim else left
        if left <= 0:
            return


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
        inputs = one_run(files, resized(files[0], batch, size) or batch)
        for phase in phases(files[0], inputs):
            key = (len(inputs[0]) if inputs[0].ndim else 1, threads, phase.name)
            if key not in timings:  # a file with a fixed batch size has one of them
                timings[key] = _latency(store, files, phase, key, options.seconds)
                last = phase, timings[key]
    if last is None:
        return (), None
    phase, timing = last
    profile = store.load_or_make(
        f"profile-{timing.batch}-{timing.threads}-{timing.phase}",
        Profile,
        lambda: _profile(subjects, phase, timing),
    )
    return tuple(timings.values()), profile


def _profile(subjects: Sequence[Subject], phase: Phase, timing: Timing) -> Profile:
    files, names = [s.profiled for s in subjects], [s.name for s in subjects]
    nodes = profile_nodes(files, phase.inputs, threads=timing.threads)
    differs = sums_that_differ(nodes, names, [spread.median for spread in timing.models])
    return Profile(timing.batch, timing.threads, nodes, timing.phase, differs)


def _latency(
    store: Store,
    files: Sequence[Path],
    phase: Phase,
    key: tuple[int, int, str],
    seconds: float,
) -> Timing:
    size, threads, name = key
    return store.load_or_make(
        f"latency-{size}-{threads}" + (f"-{name}" if name else ""),
        Timing,
        lambda: phase.time(files, threads=threads, seconds=seconds),
    )


def _layers(
    store: Store,
    quantized: Quantized | str,
    batches: Sequence[Batch],
    options: ReportOptions,
    bars: Bars,
) -> tuple[Sensitivity | None, str]:
    if isinstance(quantized, str):
        return None, quantized
    bar = bars("measuring layers", None)
    try:
        return measure_sensitivity(
            quantized, batches, budget=options.budget, store=store, progress=bar
        ), ""
    except QtoolError as error:
        return None, str(error)


def _models(
    subjects: Sequence[Subject],
    files: Sequence[ModelFile],
    coverages: Sequence[Coverage],
    exact: Sequence[Exactness | None],
    accuracy: Accuracy,
    latency: Sequence[Timing],
    goals: Goals,
) -> tuple[ModelFacts, ...]:
    sizes = [
        subject.size_bytes or sum(f.stat().st_size for f in file.parts)
        for subject, file in zip(subjects, files, strict=True)
    ]
    facts = []
    for i, (subject, coverage) in enumerate(zip(subjects, coverages, strict=True)):
        purpose = _purpose(files[i], sizes[i] / sizes[0]) if i else Purpose()
        verdict = (
            make_verdict(
                accuracy,
                i,
                latency,
                coverage.share,
                exact[i],
                goals,
                purpose,
                coverage.unknown_operators,
            )
            if i
            else None
        )
        facts.append(
            ModelFacts(
                subject.name,
                subject.file.name,
                subject.origin,
                sizes[i],
                coverage.share,
                coverage.macs,
                len(coverage.rows),
                len(coverage.rows) - len(coverage.float_rows),
                exact[i],
                verdict,
                purpose.target,
                purpose.mode,
                purpose.runs_here,
                files[i].deployment() if i else None,
                coverage.weight_share,
                runtime_of(files[i]) if i else subject.timed_name,
                coverage.unknown_operators,
            )
        )
    return tuple(facts)


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
