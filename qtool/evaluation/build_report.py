"""Measure everything a report holds; an interrupted run resumes from the stored measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from qtool.backends.formats import open_file
from qtool.backends.model_file import ModelFile
from qtool.core.array_batches import whole_arrays
from qtool.core.errors import KernelError
from qtool.core.progress import Bars, length_of, no_bars
from qtool.core.torch_package import has_torch
from qtool.core.types import Array
from qtool.evaluation.evaluation import ModelFacts
from qtool.evaluation.labelled_data import LabelledData
from qtool.evaluation.latency.decoding import Phase, phases
from qtool.evaluation.latency.interleaved_timing import Timing
from qtool.evaluation.latency.node_times import Profile
from qtool.evaluation.machine import this_machine
from qtool.evaluation.measure.accuracy import Accuracy, WorstSample, summarize
from qtool.evaluation.measure.output_pass import (
    FirstBatches,
    Reference,
    Yardsticks,
    measure_arrays,
)
from qtool.evaluation.model_inputs import check_same_inputs
from qtool.evaluation.options import Goals, ReportOptions
from qtool.evaluation.report.report import SCHEMA, FloatOperator, Report
from qtool.evaluation.report.verdict import best_model, make_verdict
from qtool.evaluation.subject import Subject
from qtool.metrics.metric import check_drop
from qtool.verification import Coverage, Exactness, SelfCheck

if TYPE_CHECKING:
    from qtool.evaluation.planned_layers import PlannedLayers
    from qtool.frontends.data.sample_names import SampleNames


Audits = Sequence[tuple[Subject, Coverage, Exactness | None]]
TIMED = 64


def build_report(
    subjects: Sequence[Subject],
    data: LabelledData,
    options: ReportOptions,
    *,
    layers: PlannedLayers | str,
    bars: Bars = no_bars,
) -> Report:
    """Measure files on the same data and return the report.

    Args:
        subjects: files with the same inputs; the first is the reference.
        data: batches with their labels and metrics.
        options: goals, timing.
        layers: what measures the layers of the second file, or why they are not measured.
        bars: returns a progress bar for a title and a length.

    Raises:
        DataError: data, labels or the evaluation function cannot be used.
        OptionError: the goal for the first metric cannot be missed.
        VerificationError: a file does not run.
    """
    files, names = [s.file for s in subjects], [s.name for s in subjects]
    check_same_inputs(files)
    opened = tuple(open_file(f) for f in files)
    reference = Reference(files[0])
    first = FirstBatches(options.samples, reference.session.inputs)
    yardsticks = Yardsticks()
    arrays = data.arrays(reference.session, bars("evaluating", length_of(whole_arrays(data.whole))))
    measured = measure_arrays(reference, files[1:], arrays, first=first, yardsticks=yardsticks)
    agreements = yardsticks.agreements()
    accuracy = summarize(measured, data.labels, data.metrics(files), names, agreements)
    if data.function is None and accuracy.metrics:
        check_drop(options.goals.drop, accuracy.metrics[0].percent)
    audits = _audit(subjects, opened, layers, first)
    latency, profile = measure_latencies(subjects, first.joined(TIMED), options, bars)
    fields: Mapping[str, Any] = {"layers_note": layers}
    if not isinstance(layers, str):
        fields = layers.fields(first.by_name(), options, bars)
    models = _judged(audits, accuracy, latency, options.goals)
    return Report(
        schema=SCHEMA,
        title=options.title,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        models=models,
        machine=this_machine(),
        accuracy=_named(accuracy, data.sample_names),
        latency=latency,
        profile=profile,
        best=best_model(models, latency),
        float_operators=tuple(
            FloatOperator(subject.name, r.name, r.op, r.kernel, r.macs, r.reason)
            for subject, coverage, _ in audits[1:]
            for r in coverage.float_rows
        ),
        **fields,
    )


def _audit(
    subjects: Sequence[Subject],
    files: Sequence[ModelFile],
    layers: PlannedLayers | str,
    first: FirstBatches,
) -> Audits:
    """Return the coverage and exactness of each file, as planned where it does not run here."""
    coverages = [coverage_of(file) for file in files]
    if not isinstance(layers, str) and not files[1].runs_here:
        coverages[1] = layers.planned_coverage()
    exact = (None, *(exactness_of(file, first) for file in files[1:]))
    return list(zip(subjects, coverages, exact, strict=True))


def _judged(
    audits: Audits,
    accuracy: Accuracy,
    latency: Sequence[Timing],
    goals: Goals,
) -> tuple[ModelFacts, ...]:
    """Return the models with verdicts, and with what they need on microcontrollers."""
    facts = [
        replace(ModelFacts.of(subject, coverage, not i), exactness=exact)
        for i, (subject, coverage, exact) in enumerate(audits)
    ]
    models = facts[:1]
    for i, own in enumerate(facts[1:], 1):
        file = open_file(audits[i][0].file)
        self_test = self_test_of(file, own.exactness)
        verdict = make_verdict(facts, i, accuracy, latency, goals, self_test)
        models.append(replace(own, verdict=verdict, deployment=file.deployment()))
    return tuple(models)


def _named(accuracy: Accuracy, names: SampleNames | None) -> Accuracy:
    """Return the accuracy with the names and thumbnails that the data has of the worst samples."""
    if names is None:
        return accuracy

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


def coverage_of(file: ModelFile) -> Coverage:
    """Return the audit; in a file without quantized tensors no operator counts as integer."""
    coverage = file.coverage()
    if file.is_quantized:
        return coverage
    return replace(coverage, rows=tuple(replace(row, integer=False) for row in coverage.rows))


def measure_latencies(
    subjects: Sequence[Subject],
    batch: Sequence[Array],
    options: ReportOptions,
    bars: Bars,
) -> tuple[tuple[Timing, ...], Profile | None]:
    files = [s.timed or s.file for s in subjects]
    pairs = [(b, t) for t in options.threads for b in options.batch_sizes]
    timings: dict[tuple[int, int, str], Timing] = {}
    last: tuple[Phase, Timing] | None = None
    for size, threads in bars("timing", len(pairs))(pairs):
        for phase in phases(files, batch, size):
            one = phase.inputs[0]
            key = (len(one) if one.ndim else 1, threads, phase.name)
            if key not in timings:  # a file with a fixed batch size has one of them
                timings[key] = phase.time(files, threads=threads, seconds=options.seconds)
                last = phase, timings[key]
    if last is None:
        return (), None
    phase, timing = last
    profiled = [s.profiled or s.file for s in subjects]
    profile = phase.profile(profiled, [s.name for s in subjects], timing)
    return tuple(timings.values()), profile if profile.nodes else None


EXACT_SAMPLES = 64


def exactness_of(file: ModelFile, first: FirstBatches) -> Exactness | None:
    """Return how exactly the runtime computes what the integer engine does.

    None if the file is not quantized, the engine lacks a kernel for it, or torch is not installed.

    Args:
        file: the file.
        first: the first batches of the data.
    """
    if not file.is_quantized or not has_torch():
        return None
    try:
        return file.compare_codes(first.heads(file.path, EXACT_SAMPLES))
    except KernelError:
        return None


def self_test_of(file: ModelFile, exactness: Exactness | None) -> SelfCheck | None:
    """Return the result of the test in a file, if it was not compared with the integer engine."""
    if exactness is not None or not file.is_quantized:
        return None
    check = file.check_self_test()
    return check if check.tensors or not check.passed else None
