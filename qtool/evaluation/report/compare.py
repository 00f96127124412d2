"""Entry points of a report: a quantized model, an int8 file, or several files, each compared with a
reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from qtool.backends.onnx.export import write_float
from qtool.backends.onnx.file_info import FileInfo, maker_version
from qtool.backends.onnx.storage import save
from qtool.conversion.quantized import Quantized
from qtool.core.atomic import scratch_folder
from qtool.core.data import Batch
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.progress_bars import ProgressBars, no_bars
from qtool.evaluation.report.build_report import Subject, build_report, check_options
from qtool.evaluation.report.report import Report
from qtool.evaluation.restored_model import (
    is_quantized,
    quantization_warnings,
    read_onnx,
    remove_quantization,
    try_restore,
)
from qtool.frontends.captured_model import Captured
from qtool.planning.targets import DEFAULT

FLOAT, INT8 = "float", "int8"


def measure_quantized(
    quantized: Quantized,
    file: Path,
    data: Iterable[Any],
    options: ReportOptions,
    *,
    origin: str = "quantized by qtool",
    keep: Path | None = None,
    bars: ProgressBars = no_bars,
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
    with scratch_folder() as work:
        plain = write_float(quantized.reference, work / "float.onnx", quantized.plan.target)
        quantized.export(file)
        subjects = [
            Subject(FLOAT, plain, "the float model, exported by qtool"),
            Subject(INT8, file, f"{origin}, target {quantized.plan.target}"),
        ]
        return build_report(subjects, data, options, quantized=quantized, folder=keep, bars=bars)


def measure_file(
    file: Path,
    data: Iterable[Any],
    options: ReportOptions,
    *,
    reference: Path | Captured | None = None,
    sample: Batch | None = None,
    keep: Path | None = None,
    bars: ProgressBars = no_bars,
) -> Report:
    """Compare an int8 file, of qtool or another tool, with its float model.

    Args:
        reference: the float model, as a file or captured; by default the graph of the file
            without QuantizeLinear and DequantizeLinear.
        sample: a batch for the captured model; with it the layers are measured.
        keep: see `measure_quantized`.
    """
    model = read_onnx(file)
    with scratch_folder() as work:
        plain, words = _reference(work, file, reference)
        subjects = [
            Subject(FLOAT, plain, words),
            Subject(INT8, file, f"the file {file.name}, {_maker(model)}"),
        ]
        behind = _quantized_model(file, reference, sample)
        report = build_report(subjects, data, options, quantized=behind, folder=keep, bars=bars)
    warnings = (*quantization_warnings(file), *report.accuracy.warnings)
    return replace(report, accuracy=replace(report.accuracy, warnings=warnings))


def measure_files(
    files: Sequence[Path],
    data: Iterable[Any],
    options: ReportOptions,
    *,
    reference: int = 0,
    keep: Path | None = None,
    bars: ProgressBars = no_bars,
) -> Report:
    """Compare several files, of qtool or other tools.

    Args:
        reference: index of the file that the others are compared with.
        keep: see `measure_quantized`.
    """
    ordered = [files[reference], *(f for i, f in enumerate(files) if i != reference)]
    subjects = [Subject(n, f, _describe(f)) for n, f in zip(_names(ordered), ordered, strict=True)]
    note = "layers are not measured when files are compared; use `qtool report` for one model"
    return build_report(subjects, data, options, quantized=note, folder=keep, bars=bars)


def _reference(work: Path, file: Path, reference: Path | Captured | None) -> tuple[Path, str]:
    """Return a file of the float model, and where it comes from, in words."""
    if isinstance(reference, Captured):
        info = FileInfo.of(read_onnx(file))
        name = DEFAULT if info is None else info.target
        plain = write_float(reference.graph, work / "float.onnx", name)
        return plain, "the float model, exported by qtool"
    if reference is not None:
        read_onnx(reference)
        return reference, f"the file {reference.name}"
    path = work / "float.onnx"
    save(remove_quantization(file), path)
    return (
        path,
        "the int8 file in float arithmetic with its rounded weights (no float model was passed)",
    )


def _quantized_model(
    file: Path, reference: Path | Captured | None, sample: Batch | None
) -> Quantized | str:
    """Return the quantized model of a file, or why it is not available."""
    if not isinstance(reference, Captured) or sample is None:
        return "layers can only be measured with the float model; pass --model"
    return try_restore(file, reference, sample)


def _maker(model: onnx.ModelProto) -> str:
    version = maker_version(model)
    return f"made by qtool {version}" if version else f"made by {model.producer_name or 'unknown'}"


def _describe(file: Path) -> str:
    kind = "quantized" if is_quantized(file) else "float"
    return f"{kind}, {_maker(read_onnx(file))}"


def _names(files: Sequence[Path]) -> list[str]:
    """Return unique short names: file names, or paths if those repeat."""
    stems = [f.name.removesuffix(".onnx") for f in files]
    if len(set(stems)) == len(stems):
        return stems
    return [str(f).removesuffix(".onnx") for f in files]
