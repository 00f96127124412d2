"""The Python API where torch is not installed: files on arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from qtool.backends.open_files import open_readable, quantization_warnings
from qtool.core.argument_names import argument
from qtool.core.label_names import check_label_array
from qtool.core.numpy_files import SUFFIXES, NumpyFiles, has_arrays
from qtool.core.option_names import NATIVE
from qtool.core.path_arguments import accepts_paths
from qtool.core.progress import Bars, no_bars
from qtool.core.torch_package import torch_error
from qtool.core.types import Progress
from qtool.evaluation.evaluation import Evaluation
from qtool.evaluation.file_evaluation import evaluate_arrays
from qtool.evaluation.file_report import (
    COMPARED,
    measure_files,
    ordered_files,
    subjects_of,
    titled,
)
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.report.report import Report
from qtool.evaluation.same_weights import check_same_files
from qtool.evaluation.subject import Subject
from qtool.planning.mode_titles import MODE_NAMES


def load_data(
    source: str | Path,
    batch_size: int = 32,
    *,
    labels: str | None = None,
    samples: int | None = None,
    **others: Any,
) -> NumpyFiles:
    """Load batches of arrays from a .npy or .npz file, or a folder of them.

    Args:
        source: the file or folder.
        batch_size: samples per batch.
        labels: name of the array with the labels, which is no input.
        samples: number of evenly spaced samples to use; by default all.
        others: other arguments of `qtool.load_data` with torch.

    Raises:
        DataError: there is no such file, or no array in it.
        InstallError: other data, or one of the other arguments.
    """
    _refuse(others, "load_data")
    path = Path(source)
    if path.suffix not in SUFFIXES and not has_arrays(path):
        raise torch_error(
            f"{source} is neither a .npy or .npz file nor a folder of them; other data"
        )
    files = NumpyFiles(path, batch_size, () if labels is None else (labels,), samples)
    files.files()
    if labels is not None:
        check_label_array(files, labels)
    return files


@accepts_paths("file", "model", models="file model")
def evaluate(
    file: str | Path,
    model: str | Path,
    data: Iterable[Any],
    labels: ArrayLike | None = None,
    *,
    threads: int = 1,
    runtime: str = NATIVE,
    seconds: float = 2.0,
    other_model: bool = False,
    progress: Progress = lambda x: x,
    **others: Any,
) -> Evaluation:
    """Compare a quantized file with its float file: accuracy, size, latency, integer share.

    Args:
        file: the quantized file.
        model: the float file.
        data: batches of arrays, in the order of `labels`: one array, a dict by input name, or a
            tuple in the order of the inputs.
        labels: [samples] class numbers; the first output then holds [samples, classes] scores.
        threads, runtime, seconds, other_model, progress: see `qtool.evaluate` with torch.
        others: its other arguments.

    Raises:
        FileError: no model file.
        DataError: no data, or data or labels that do not fit.
        InstallError: one of the other arguments.
        VerificationError: a file does not run, or was made from other weights.
    """
    _refuse(others, "evaluate")
    for path in (file, model):
        open_readable(path)  # says why it is malformed
    check_same_files([Path(model), Path(file)], other_model)
    return evaluate_arrays(
        Path(model),
        Path(file),
        progress(data),
        labels,
        threads=threads,
        runtime=runtime,
        seconds=seconds,
    )


@accepts_paths("files", "folder", "reference", models="files reference")
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

    Codes are not compared with the integer engine, which needs torch.

    Args:
        files: two or more with the same inputs and outputs.
        data: batches of arrays, see `evaluate`, in the order of the labels in `options`.
        folder, options, reference, other_model, bars: see `qtool.compare` with torch.

    Raises:
        DataError: a single file, files with different inputs, or unusable data or labels.
        FileError: not a model file, or the folder cannot be written.
        InstallError: the metric is a function of the user's.
        VerificationError: a file does not run, or was made from other weights.
    """
    subjects = subjects_of(ordered_files(files, reference, other_model))
    options = titled(options, None if folder is None else Path(folder), "compared")
    return _report(subjects, data, folder, options, COMPARED, bars)


@accepts_paths("file", "folder", "model", models="file model")
def report(
    file: str | Path,
    data: Iterable[Any],
    folder: str | Path,
    options: ReportOptions | None = None,
    *,
    model: str | Path | None = None,
    other_model: bool = False,
    bars: Bars = no_bars,
    **others: Any,
) -> Report:
    """Write a report on a quantized file to a folder, without an analysis of its layers.

    Args:
        file: the quantized file.
        data: batches of arrays, see `evaluate`, in the order of the labels in `options`.
        folder: receives report.html, report.md and report.json.
        options: labels, goals, timing.
        model: the float file.
        other_model, bars: see `qtool.report` with torch.
        others: its other arguments.

    Raises:
        DataError: unusable data or labels.
        FileError: not a model file, or the folder cannot be written.
        InstallError: no float file, one of the other arguments, or a function as the metric.
        VerificationError: a file does not run, or was made from other weights.
    """
    _refuse(others, "report")
    if model is None:
        raise torch_error(f"a report without the float file as {argument('--model')}")
    path, real = Path(file), Path(model)
    opened = open_readable(path)
    open_readable(real)
    check_same_files([real, path], other_model)
    conversion = opened.conversion()
    mode = MODE_NAMES["static" if conversion is None else conversion.info.recipe.mode]
    subjects = [
        Subject("float", real, f"the file {real.name}", timed_name=real.name),
        Subject(mode, path, f"the file {path.name}, made by {opened.maker}"),
    ]
    note = "layers are measured with the float model in torch, which is not installed"
    warnings = quantization_warnings(opened)
    return _report(subjects, data, folder, titled(options, Path(folder)), note, bars, warnings)


def _report(
    subjects: Sequence[Subject],
    data: Iterable[Any],
    folder: str | Path | None,
    options: ReportOptions,
    note: str,
    bars: Bars,
    warnings: Sequence[str] = (),
) -> Report:
    """Measure files, and write the report if there is a folder for it."""
    if folder is None:
        return measure_files(subjects, data, options, note=note, bars=bars)
    from qtool.evaluation.report.page.write import History, ReportFolder  # loads templates

    last = subjects[-1].file
    history = None if options.history is None else History(options.history, last, str(last))
    pages = ReportFolder.of(Path(folder), history)
    made = measure_files(subjects, data, options, note=note, folder=pages.kept, bars=bars)
    warnings = (*warnings, *made.accuracy.warnings)
    return pages.write(replace(made, accuracy=replace(made.accuracy, warnings=warnings)))


def _refuse(others: Mapping[str, Any], call: str) -> None:
    """Refuse arguments in use that need torch."""
    used = (name for name, value in others.items() if value)
    if (other := next(used, None)) is not None:
        raise torch_error(f"{other} of {call}")
