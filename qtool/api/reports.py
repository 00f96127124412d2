"""The Python API for reports: `compare` and `report`. They need no torch for files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api.float_source import float_source
from qtool.backends.formats import open_file, warnings_on_files
from qtool.core.atomic import resolve, scratch_folder
from qtool.core.conversion_options import DynamicSizes
from qtool.core.errors import DataError
from qtool.core.path_arguments import model_file, model_files
from qtool.core.paths import same_file
from qtool.core.progress import Bars, no_bars
from qtool.core.remedies import CallEdit
from qtool.evaluation.build_report import build_report
from qtool.evaluation.labelled_data import LabelledData, calibrated_columns
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.report.page.folder import check_folder
from qtool.evaluation.report.report import Report
from qtool.evaluation.same_weights import check_same_files
from qtool.evaluation.subject import Subject, quantized_subject

if TYPE_CHECKING:
    from qtool.frontends.captured_model import Captured, Model


def compare(
    files: Sequence[str | Path],
    data: Iterable[Any],
    folder: str | Path | None = None,
    options: ReportOptions | None = None,
    *,
    reference: str | Path | None = None,
    other_model: bool = False,
    bars: Bars = no_bars,
) -> Report:
    """Compare accuracy, speed and size of several model files of any tool.

    Args:
        files: two or more with the same inputs and outputs.
        data: batches, in the order of the labels in `options`, or all samples; arrays or tensors.
        folder: where to write the report; None writes none.
        options: labels, metrics, goals, timing.
        reference: the file that the others are compared with, which need not be in `files`; by
            default the first.
        other_model: accept quantized files that were made from other weights than the reference's.
        bars: makes a progress bar from a title and a length.

    Raises:
        DataError: a single file, files with different inputs, or unusable data, labels or
            evaluation function.
        FileError: not a model file, or the folder cannot be written.
        VerificationError: a file does not run, or was made from other weights.

    Example:
        >>> print(qtool.compare(["model.onnx", "model.int8.onnx"], loader))
    """
    ordered = ordered_files(files, reference, other_model)
    title = "compared" if folder is None else resolve(folder).name
    options = (options or ReportOptions()).titled(title)
    judged = LabelledData(data, *options.metrics, columns=calibrated_columns(*ordered))
    judged.check(options.goals.drop)
    if folder is not None:
        check_folder(Path(folder))
    subjects = compared_subjects(ordered)
    report = build_report(subjects, judged, options, layers=NO_LAYERS, bars=bars)
    if folder is None:
        return report
    from qtool.evaluation.report.page.render import write_report  # loads the plotting library

    return write_report(Path(folder), report)


def report(
    file: str | Path,
    data: Iterable[Any],
    folder: str | Path,
    options: ReportOptions | None = None,
    *,
    model: Model | Captured | str | Path,
    other_model: bool = False,
    dynamic: DynamicSizes | None = None,
    bars: Bars = no_bars,
) -> Report:
    """Write a report on an int8 file to a folder: whether it is good enough to ship, and why.

    Args:
        file: the int8 file, ONNX or TFLite, of any tool.
        data: batches, in the order of the labels in `options`, or all samples; arrays or tensors.
        folder: receives report.html, report.md and report.json.
        options: labels, metrics, goals, timing.
        model: its float model, or the path of that as ONNX or TFLite, which has no layer analysis.
        other_model: whether the file may be compared with a float model of other weights than it
            was made from.
        dynamic: see `capture_model`.
        bars: makes a progress bar from a title and a length.

    Raises:
        CaptureError: the float model cannot be captured.
        DataError: unusable data, labels or evaluation function.
        FileError: not a model file, or the folder cannot be written.
        InstallError: a float model that is no file, and torch is not installed.
        VerificationError: a file does not run, or was made from a model with other weights.

    Example:
        >>> options = qtool.ReportOptions(labels=labels, goals=qtool.Goals(drop=0.01))
        >>> qtool.report("model.int8.onnx", loader, "report", options, model=model)
    """
    file = model_file(file)
    opened, options = open_file(file), (options or ReportOptions()).titled(file.name)
    judged = LabelledData(data, *options.metrics, columns=calibrated_columns(file))
    judged.check(options.goals.drop)
    with scratch_folder() as work:
        float_ = float_source(file, model, judged, work, dynamic=dynamic, other_model=other_model)
        check_folder(Path(folder))
        report = build_report(
            [float_.subject, quantized_subject(opened)],
            float_.data or judged,
            options,
            layers=float_.layers(),
            bars=bars,
        )
        of_files = warnings_on_files(opened, float_.subject.timed or float_.subject.file)
    warnings = (*of_files, *report.accuracy.warnings)
    report = replace(report, accuracy=replace(report.accuracy, warnings=warnings))
    from qtool.evaluation.report.page.render import write_report  # loads the plotting library

    return write_report(Path(folder), report)


NO_LAYERS = "layers are not measured when files are compared; use `qtool report` for one model"


def compared_subjects(files: Sequence[Path]) -> list[Subject]:
    """Return files, of qtool or other tools, as subjects with unique names."""
    return [Subject(n, f, _describe(f)) for n, f in zip(_names(files), files, strict=True)]


def ordered_files(
    files: Sequence[str | Path], reference: str | Path | None, other_model: bool
) -> list[Path]:
    """Return the files of a comparison, the reference first.

    Raises:
        DataError: a single file, or one that is named twice.
        FileError: not a model file.
        VerificationError: see `check_same_files`.
    """
    paths = model_files(files)
    if (same := same_file(paths)) is not None:
        raise DataError(f"{same[0]} and {same[1]} are one file", CallEdit("name each file once"))
    first = paths[0] if reference is None and paths else model_file(reference or "")
    ordered = [first, *(p for p in paths if same_file([first, p]) is None)]
    if reference is None:
        ordered = paths
    if len(ordered) < 2:
        count = "is one file" if ordered else "is no file"
        raise DataError(f"there {count}", CallEdit("give two or more to compare"))
    for path in ordered:
        open_file(path)
    check_same_files(ordered, other_model)
    return ordered


def _describe(path: Path) -> str:
    file = open_file(path)
    return f"{'quantized' if file.is_quantized else 'float'}, made by {file.maker}"


def _names(files: Sequence[Path]) -> list[str]:
    """Return unique short names: file names, or paths if those repeat."""
    suffixes = {f: open_file(f).suffix for f in files}
    stems = [f.name.removesuffix(suffixes[f]) for f in files]
    paths = [str(f).removesuffix(suffixes[f]) for f in files]
    unique = (names for names in (stems, paths) if len(set(names)) == len(names))
    return next(unique, [str(f) for f in files])
