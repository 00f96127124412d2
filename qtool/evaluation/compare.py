"""What a report compares: a quantized model, an int8 file, or several files, each with a
reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qtool.backends.model_file import ModelFile
from qtool.backends.table import open_file
from qtool.conversion.quantized import Quantized
from qtool.core.argument_names import argument
from qtool.core.atomic import scratch_folder
from qtool.core.data import Batch
from qtool.core.progress import Bars, no_bars
from qtool.evaluation.baseline import Baseline
from qtool.evaluation.build_report import build_report, check_options
from qtool.evaluation.file_report import COMPARED, subjects_of
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.report.report import Report
from qtool.evaluation.restored_model import try_restore
from qtool.evaluation.subject import Subject
from qtool.frontends.captured_model import Captured
from qtool.planning.mode_titles import MODE_NAMES
from qtool.planning.targets import DEFAULT

FLOAT = "float"


def measure_quantized(
    quantized: Quantized,
    file: Path,
    data: Iterable[Any],
    options: ReportOptions,
    *,
    origin: str = "quantized by qtool",
    keep: Path | None = None,
    bars: Bars = no_bars,
) -> Report:
    """Compare a quantized model with its float model.

    Args:
        file: path to write the int8 model to.
        origin: how the model was made, in words.
        keep: folder for intermediate results, from which an interrupted run resumes.

    Raises:
        QtoolError: see `build` and `Quantized.export`.
    """
    check_options(data, options)
    plan = quantized.plan
    with scratch_folder() as work:
        quantized.export(file)
        subjects = [
            _float_subject(Baseline(quantized.captured, work, plan.target, file.suffix)),
            Subject(MODE_NAMES[plan.recipe.mode], file, f"{origin}, target {plan.target}"),
        ]
        return build_report(subjects, data, options, quantized=quantized, folder=keep, bars=bars)


def file_subjects(
    file: ModelFile, reference: Path | Captured | None, folder: Path
) -> list[Subject]:
    """Return the float model of an int8 file, of qtool or another tool, and the file.

    Args:
        file: the int8 file.
        reference: the float model, as a file or captured; by default the graph of the file
            without QuantizeLinear and DequantizeLinear.
        folder: where float files are written.
    """
    words = f"the file {file.path.name}, made by {file.maker}"
    return [_reference(folder, file, reference), Subject(_name(file), file.path, words)]


def compare_files(
    files: Sequence[Path],
    data: Iterable[Any],
    options: ReportOptions,
    *,
    keep: Path | None = None,
    bars: Bars = no_bars,
) -> Report:
    """Compare several files, of qtool or other tools.

    Args:
        files: the others are compared with the first.
        keep: see `measure_quantized`.
    """
    subjects = subjects_of(files)
    return build_report(subjects, data, options, quantized=COMPARED, folder=keep, bars=bars)


def _float_subject(baseline: Baseline) -> Subject:
    names = (baseline.origin, baseline, baseline.name)
    return Subject(FLOAT, baseline.reference, *names, size_bytes=baseline.size_bytes)


def _reference(work: Path, file: ModelFile, reference: Path | Captured | None) -> Subject:
    """Return the float model of a file."""
    if isinstance(reference, Captured):
        return _float_subject(Baseline(reference, work, file.target or DEFAULT, file.suffix))
    if reference is not None:
        path, words = open_file(reference).path, f"the file {reference.name}"
        return Subject(FLOAT, path, words, timed_name=path.name)
    words = "the int8 file in float arithmetic with its rounded weights (no float model was passed)"
    return Subject(FLOAT, file.write_float(work / "float.onnx"), words)


def _name(file: ModelFile) -> str:
    """Return the name of a quantized file next to its float model."""
    conversion = file.conversion()
    return MODE_NAMES["static" if conversion is None else conversion.info.recipe.mode]


def quantized_model(
    file: Path, reference: Path | Captured | None, sample: Batch | None
) -> Quantized | str:
    """Return the quantized model of a file, whose layers are measured, or why there is none.

    Args:
        file: the int8 file.
        reference: see `file_subjects`.
        sample: a batch for the captured model.
    """
    if not isinstance(reference, Captured) or sample is None:
        return f"layers can only be measured with the float model; pass {argument('--model')}"
    return try_restore(file, reference, sample)
