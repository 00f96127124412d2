"""The Python API for reports: `compare` and `report`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from qtool.api.cached_files import check_cached
from qtool.api.conversion import convert, quantize
from qtool.api.evaluation import data_module
from qtool.api.quantized_model import QuantizedModel
from qtool.backends.open_files import open_model, quantization_warnings
from qtool.backends.table import open_file
from qtool.calibration.calibration import Calibration
from qtool.core.argument_names import argument
from qtool.core.atomic import scratch_folder
from qtool.core.data import Batch, peek
from qtool.core.errors import CaptureError, DataError, OptionError, VerificationError
from qtool.core.path_arguments import accepts_paths
from qtool.core.progress import Bars, no_bars
from qtool.core.remedies import CallEdit, DataEdit, Omission
from qtool.distributed import DataShard, current, within
from qtool.evaluation.baseline import ONNX
from qtool.evaluation.build_report import build_report
from qtool.evaluation.compare import compare_files, file_subjects, quantized_model
from qtool.evaluation.file_report import ordered_files, titled
from qtool.evaluation.fixed_inputs import check_fixed_inputs, fixed_inputs_of
from qtool.evaluation.model_inputs import check_cache
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.report.report import Report
from qtool.evaluation.same_model import check_same_model
from qtool.evaluation.same_weights import check_same_files
from qtool.frontends.captured_model import (
    DEFAULT_OBSERVER,
    Captured,
    DynamicSizes,
    Model,
    capture_model,
)
from qtool.frontends.data.table_remedies import columns_in_errors
from qtool.frontends.onnx import load_onnx
from qtool.planning.targets import DEFAULT


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

    Args:
        files: two or more with the same inputs and outputs.
        data: batches, in the order of the labels in `options`.
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
    """
    ordered = ordered_files(files, reference, other_model)
    if folder is None:
        return compare_files(ordered, data, titled(options, None, "compared"), bars=bars)
    from qtool.evaluation.report.page.write import ReportFolder  # loads the plotting library

    pages, options = ReportFolder.of(Path(folder)), titled(options, Path(folder), "compared")
    return pages.write(compare_files(ordered, data, options, keep=pages.kept, bars=bars))


@accepts_paths("folder", mixed="source model calibration", models="source")
def report(
    source: QuantizedModel | Model | Captured | str | Path,
    data: Iterable[Any],
    folder: str | Path,
    options: ReportOptions | None = None,
    *,
    model: Model | Captured | str | Path | None = None,
    calibration: Calibration | str | Path | None = None,
    calibration_data: Iterable[Any] | None = None,
    target: str | None = None,
    observer: str | None = None,
    recipe: Any = None,
    mode: str | None = None,
    accuracy: str | None = None,
    dynamic: DynamicSizes | None = None,
    other_model: bool = False,
    bars: Bars = no_bars,
) -> Report:
    """Write a report on an int8 model to a folder: whether it is good enough to ship, and why.

    Args:
        source: a quantized model; the path of an int8 file, ONNX or TFLite, of any tool; or a float
            model, which is calibrated and converted first.
        data: batches, in the order of the labels in `options`.
        folder: receives report.html, report.md and report.json, and the int8 model unless `source`
            is a file.
        options: labels, metrics, goals, timing.
        model: float model of a file, or the path of that as ONNX or TFLite. By default the graph of
            the file without quantization; the report then has no layer analysis.
        calibration: ranges of a float model: the result of `calibrate`, or its file.
        calibration_data: data to calibrate a float model on; by default `data`.
        target, observer, recipe, mode, accuracy: options of the conversion of a float model, as for
            `quantize`.
        dynamic: see `capture_model`.
        other_model: whether a file may be compared with a float model of other weights than it was
            made from.
        bars: makes a progress bar from a title and a length.

    Raises:
        QtoolError: see `quantize` and `QuantizedModel.export` for a float model.
        DataError: unusable data, labels or evaluation function.
        FileError: not a model file, or the folder cannot be written.
        VerificationError: a file does not run, or was made from a model with other weights.
    """
    place, ranks = Path(folder), current()
    file = Path(source).name if isinstance(source, str | Path) else ""
    options = titled(options, None if file else place, file)
    _check_use(
        source,
        model,
        calibration=calibration,
        calibration_data=calibration_data,
        target=target,
        observer=observer,
        recipe=recipe,
        mode=mode,
        accuracy=accuracy,
    )
    if calibration is not None or isinstance(source, str | Path | QuantizedModel):
        ranks.continue_on_rank_zero()  # no work to share
    if isinstance(source, str | Path):
        return _report_file(Path(source), model, data, place, options, dynamic, other_model, bars)
    if isinstance(source, QuantizedModel):
        return source.report(data, place, options, bars=bars)
    own = calibration is None and calibration_data is None
    if own and iter(data) is data:
        data = list(data)  # read twice
    first, stream = peek(
        data if calibration_data is None else calibration_data, data_module(source)
    )
    with columns_in_errors(data, source, first):
        captured = capture_model(source, first, dynamic)
    if calibration is not None:
        quantized = convert(
            captured,
            calibration,
            target=target,
            recipe=recipe,
            mode=mode,
            accuracy=accuracy,
            sample=first,
        )
        name = "a calibration" if isinstance(calibration, Calibration) else Path(calibration).name
        origin = f"converted by qtool with {name}"
    else:
        with within(... if ranks.is_distributed else None):  # every rank has all data
            quantized = quantize(
                captured,
                DataShard(stream, ranks.rank, ranks.size) if ranks.is_distributed else stream,
                target=target or DEFAULT,
                observer=observer or DEFAULT_OBSERVER,
                recipe=recipe,
                mode=mode,
                accuracy=accuracy,
                progress=bars("calibrating", None),
            )
        origin = "quantized by qtool"
        origin += ", calibrated on the evaluation data itself" if own else ""
    return quantized.report(data, place, options, origin=origin, bars=bars)


def _check_use(source: Any, model: Any, **conversion: Any) -> None:
    """Refuse a float model next to one that is converted, and options of a conversion next to a
    file: they would change nothing.

    Raises:
        OptionError: there is such an argument.
    """
    if not isinstance(source, str | Path):
        if model is not None:
            raise OptionError(
                f"{argument('--model')} is the float model of a file, and the first argument is a "
                "model, which is quantized first",
                CallEdit("give the int8 file as the first argument"),
                Omission("--model"),
            )
        return
    for name, value in conversion.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise OptionError(
                f"{argument(option)} is for a model that is quantized first, not for a file",
                Omission(option),
            )


def _report_file(
    file: Path,
    model: Model | Captured | str | Path | None,
    data: Iterable[Any],
    folder: Path,
    options: ReportOptions,
    dynamic: DynamicSizes | None,
    other_model: bool,
    bars: Bars,
) -> Report:
    """Write the report on a file, with its float model if there is one."""
    opened = open_file(file)
    reference: Path | Captured | None = None
    sample: Batch | None = None
    if isinstance(model, str | Path):
        model = _float_file(Path(model), file)
    if isinstance(model, Path):
        reference = model
        check_same_files([model, file], other_model)
    elif model is not None:
        check_fixed_inputs(file, model)
        check_cached(file, model)
        table = data
        sample, data = peek(data, data_module(model))
        if sample is None:
            raise DataError("the data is empty", DataEdit("give at least one batch"))
        with columns_in_errors(table, model, sample):
            reference = capture_model(model, sample, dynamic)
        check_cache(file, reference.graph.inputs)
        if not other_model:
            check_same_model(file, reference, model)
    from qtool.evaluation.report.page.write import (  # loads the plotting library
        History,
        ReportFolder,
    )

    history = None if options.history is None else History(options.history, file, str(file))
    pages = ReportFolder.of(folder, history)
    with scratch_folder() as work:
        report = build_report(
            file_subjects(opened, reference, work),
            data,
            options,
            quantized=quantized_model(file, reference, sample),
            folder=pages.kept,
            bars=bars,
        )
    warnings = (*quantization_warnings(opened), *report.accuracy.warnings)
    return pages.write(replace(report, accuracy=replace(report.accuracy, warnings=warnings)))


def _float_file(file: Path, quantized: Path) -> Path | nn.Module:
    """Return the path of a float file; the loaded copy in float32 of one in bfloat16, for which
    ONNX Runtime has no kernels, or with the inputs fixed that are constants in the quantized
    file."""
    open_file(file)
    if fixed := fixed_inputs_of(quantized, file):
        return load_onnx(file, fixed)
    try:
        open_model(file)
    except VerificationError:
        with suppress(CaptureError):
            if file.suffix == ONNX and (module := load_onnx(file)).notes:
                return module
        raise
    return file
