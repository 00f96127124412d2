"""A report on files that are run on arrays, without torch: its parts, and one on files alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence, Sized
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.open_files import open_readable, runtime_title
from qtool.backends.readable_file import ReadableFile
from qtool.core.atomic import resolve
from qtool.core.errors import DataError
from qtool.core.option_names import NATIVE
from qtool.core.paths import same_file
from qtool.core.progress import Bars, no_bars
from qtool.core.remedies import CallEdit
from qtool.core.store import Store
from qtool.core.torch_package import torch_error
from qtool.evaluation.latency.decoding import Phase, phases
from qtool.evaluation.latency.interleaved_timing import Timing
from qtool.evaluation.latency.node_times import Profile
from qtool.evaluation.machine import this_machine
from qtool.evaluation.measure.accuracy import summarize
from qtool.evaluation.measure.input_arrays import input_arrays
from qtool.evaluation.measure.output_pass import FirstBatches, Reference, measure_arrays
from qtool.evaluation.measurement import Measurement
from qtool.evaluation.model_inputs import check_same_inputs, resized
from qtool.evaluation.options import Goals, ReportOptions
from qtool.evaluation.report.plan_facts import FloatOperator
from qtool.evaluation.report.ranking import best_model
from qtool.evaluation.report.report import SCHEMA, ModelFacts, Report
from qtool.evaluation.report.verdict import Purpose, make_verdict
from qtool.evaluation.same_weights import check_same_files
from qtool.evaluation.subject import Subject
from qtool.metrics.metric import check_drop
from qtool.verification import Coverage

TIMED_SAMPLES = 64
COMPARED = "layers are not measured when files are compared; use `qtool report` for one model"


def measure_files(
    subjects: Sequence[Subject],
    data: Iterable[Any],
    options: ReportOptions,
    *,
    note: str,
    folder: Path | None = None,
    bars: Bars = no_bars,
) -> Report:
    """Measure files on the same arrays and return the report.

    Args:
        subjects: files with the same inputs; the first is the reference.
        data: batches, see `input_arrays`, in the order of the labels.
        options: labels, goals, timing.
        note: why layers are not measured.
        folder: folder for intermediate results; the same run started again resumes from there.
        bars: returns a progress bar for a title and a length.

    Raises:
        DataError: data or labels cannot be used.
        InstallError: the metric is a function of the user's.
        VerificationError: a file does not run.
    """
    if options.function is not None:
        raise torch_error("a function as the metric of a report")
    files = [s.file for s in subjects]
    check_same_inputs(files)
    opened = tuple(open_readable(f) for f in files)
    store = Store(folder, digest_of(opened, options))
    reference = Reference(files[0])
    first = FirstBatches(options.samples, reference.session.inputs)
    bar = bars("evaluating", len(data) if isinstance(data, Sized) else None)
    stream = input_arrays(reference.session, bar(data))
    measured = measure_arrays(files, stream, reference=reference, first=first, store=store)
    names = [s.name for s in subjects]
    accuracy = summarize(measured, options.labels, names=names)
    if accuracy.metrics:
        check_drop(options.goals.drop, accuracy.metrics[0].percent)
    coverages = tuple(coverage_of(store, i, f) for i, f in enumerate(opened))
    batch = first.joined(TIMED_SAMPLES)
    latency, profile = measure_latencies(store, subjects, batch, options, bars)
    exactness = (None,) * len(opened)  # of the integer engine
    results = Measurement(opened, accuracy, latency, coverages, exactness, subjects[0].size_bytes)
    return make_report(subjects, results, profile, options, layers_note=note)


def make_report(
    subjects: Sequence[Subject],
    results: Measurement,
    profile: Profile | None,
    options: ReportOptions,
    **fields: Any,
) -> Report:
    """Return the report of measurements.

    Args:
        subjects: the files.
        results: what was measured of them.
        profile: times of their nodes.
        options: title and goals.
        fields: fields of the report on layers and plan, if there are any.
    """
    files = zip(subjects, results.files, strict=True)
    models = tuple(_facts(s, f, results, i, options.goals) for i, (s, f) in enumerate(files))
    floats = tuple(
        operator
        for subject, coverage in zip(subjects[1:], results.coverages[1:], strict=True)
        if coverage is not None
        for operator in _float_operators(subject.name, coverage)
    )
    plan = {"rewrites": (), "edges": (), "notes": (), "plan": (), "layers": None}
    return Report(
        schema=SCHEMA,
        title=options.title,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        models=models,
        machine=this_machine(),
        accuracy=results.accuracy,
        latency=results.timings,
        profile=profile,
        best=best_model(models, results.timings),
        float_operators=floats,
        **{**plan, **fields},
    )


def digest_of(files: Sequence[ReadableFile], options: ReportOptions) -> str:
    digest = hashlib.sha256(options.mark.encode())
    for part in (part for file in files for part in file.parts):
        with part.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]


def coverage_of(store: Store, index: int, file: ReadableFile) -> Coverage:
    """Return the audit; in a file without quantized tensors no operator counts as integer."""
    coverage = store.load_or_make(f"coverage{index}", Coverage, file.coverage)
    if file.is_quantized:
        return coverage
    return replace(coverage, rows=tuple(replace(row, integer=False) for row in coverage.rows))


def measure_latencies(
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


def _facts(
    subject: Subject, file: ReadableFile, measured: Measurement, i: int, goals: Goals
) -> ModelFacts:
    coverage, exact = measured.coverages[i], measured.exactness[i]
    assert coverage is not None
    purpose = _purpose(file, measured.size(i) / measured.size(0)) if i else Purpose()
    share, weight_share, unknown = measured.shares(i)
    judged = share if coverage.macs or unknown else nan
    verdict = (
        make_verdict(measured.accuracy, i, measured.timings, judged, exact, goals, purpose, unknown)
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


def _purpose(file: ReadableFile, size: float) -> Purpose:
    """Return what a file is for, by the metadata that qtool wrote."""
    conversion = file.conversion()
    if conversion is None:
        return Purpose(size=size)
    info = conversion.info
    return Purpose(info.target, info.recipe.mode, file.runs_here, size)


def runtime_of(file: ReadableFile) -> str:
    """Return where a file was timed on this machine, "" for an ONNX file that is for this machine.

    For others: "in LiteRT 2.1.0", "in LiteRT 2.1.0, on this CPU, not on tflite-micro".
    """
    title = runtime_title(NATIVE, file.suffix)
    place = "" if file.runs_here else f"on this CPU, not on {file.target}"
    return ", ".join(filter(None, [f"in {title}" if title else "", place]))


def _float_operators(model: str, coverage: Coverage) -> Sequence[FloatOperator]:
    """Return the operators that the audit reports in float."""
    return [
        FloatOperator(model, r.name, r.op, r.kernel, r.macs, r.reason) for r in coverage.float_rows
    ]


def ordered_files(
    files: Sequence[str | Path], reference: str | Path | None, other_model: bool
) -> list[Path]:
    """Return the files of a comparison, the reference first.

    Raises:
        DataError: a single file, or one that is named twice.
        FileError: not a model file.
        VerificationError: see `check_same_files`.
    """
    paths = [Path(f) for f in files]
    if (same := same_file(paths)) is not None:
        raise DataError(f"{same[0]} and {same[1]} are one file", CallEdit("name each file once"))
    first = paths[0] if reference is None and paths else Path(reference or "")
    ordered = [first, *(p for p in paths if same_file([first, p]) is None)]
    if reference is None:
        ordered = paths
    if len(ordered) < 2:
        count = "is one file" if ordered else "is no file"
        raise DataError(f"there {count}", CallEdit("give two or more to compare"))
    for path in ordered:
        open_readable(path)
    check_same_files(ordered, other_model)
    return ordered


def titled(options: ReportOptions | None, folder: Path | None, title: str = "") -> ReportOptions:
    """Return the options with a title, by default the folder's name; `title` without one."""
    chosen = options or ReportOptions()
    name = title if folder is None else resolve(folder).name
    return chosen if chosen.title else replace(chosen, title=name)


def subjects_of(files: Sequence[Path]) -> list[Subject]:
    """Return the files of a comparison with short names."""
    return [Subject(n, f, _describe(f)) for n, f in zip(_names(files), files, strict=True)]


def _describe(path: Path) -> str:
    file = open_readable(path)
    return f"{'quantized' if file.is_quantized else 'float'}, made by {file.maker}"


def _names(files: Sequence[Path]) -> list[str]:
    """Return unique short names: file names, or paths if those repeat."""
    suffixes = {f: open_readable(f).suffix for f in files}
    stems = [f.name.removesuffix(suffixes[f]) for f in files]
    paths = [str(f).removesuffix(suffixes[f]) for f in files]
    unique = (names for names in (stems, paths) if len(set(names)) == len(names))
    return next(unique, [str(f) for f in files])
