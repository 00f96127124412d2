"""From a model to a written report: what the commands and `QuantizedModel.report` do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx

from qtool.analysis.restore import float_twin, is_quantized, read_onnx, restored
from qtool.analysis.store import Store
from qtool.conversion import Captured
from qtool.data import Batch
from qtool.export import write_onnx
from qtool.graph import FloatGraph
from qtool.onnx_graph.file_info import FileInfo, version_of
from qtool.page.folder import check_folder, publish, resume_folder
from qtool.page.gather import Bars, Options, Subject, build, check_options, no_bars
from qtool.page.model import Report
from qtool.page.render import pages
from qtool.quantized import QuantizedModel, float_onnx
from qtool.targets import DEFAULT, target

__all__ = ["compare_files", "report_file", "report_quantized"]

FLOAT, INT8 = "float", "int8"


def report_quantized(
    quantized: QuantizedModel,
    data: Iterable[Any],
    folder: Path,
    options: Options,
    *,
    origin: str = "quantized by qtool",
    bars: Bars = no_bars,
) -> Report:
    """Reports on a quantized model; the folder holds the int8 file too.

    Args:
        origin: how the int8 model was made, in words.

    Raises:
        QtoolError: see `build`, `publish` and `QuantizedModel.export`.
    """
    check_folder(folder)
    check_options(data, options)
    with _workplace() as work:
        plain = _float_file(work, quantized.reference, quantized.plan.target)
        file = work / "model.int8.onnx"
        quantized.export(file)
        subjects = [
            Subject(FLOAT, plain, "the float model, exported by qtool"),
            Subject(INT8, file, f"{origin}, target {quantized.plan.target}"),
        ]
        extra = {"model.int8.onnx": file}
        return _write(subjects, data, folder, options, quantized, bars, extra)


def report_file(
    file: Path,
    data: Iterable[Any],
    folder: Path,
    options: Options,
    *,
    reference: Path | Captured | None = None,
    sample: Batch | None = None,
    bars: Bars = no_bars,
) -> Report:
    """Reports on an int8 file, qtool's or another tool's.

    Args:
        reference: the float model: a file, or captured; by default the file's own graph without
            its roundings.
        sample: a batch for the captured model, whose layers are looked at then.
    """
    check_folder(folder)
    model = read_onnx(file)
    with _workplace() as work:
        plain, words = _reference(work, file, reference)
        subjects = [
            Subject(FLOAT, plain, words),
            Subject(INT8, file, f"the file {file.name}, {_maker(model)}"),
        ]
        behind = _behind(file, reference, sample)
        return _write(subjects, data, folder, options, behind, bars, {})


def compare_files(
    files: Sequence[Path],
    data: Iterable[Any],
    folder: Path | None,
    options: Options,
    *,
    reference: int = 0,
    bars: Bars = no_bars,
) -> Report:
    """Several files side by side, made by qtool or not; without a folder nothing is written.

    Args:
        reference: which of the files the others are compared with.
    """
    if folder is not None:
        check_folder(folder)
    ordered = [files[reference], *(f for i, f in enumerate(files) if i != reference)]
    subjects = [Subject(n, f, _words(f)) for n, f in zip(_names(ordered), ordered, strict=True)]
    note = "several files are compared; `qtool report` looks at the layers of one model"
    if folder is None:
        return build(subjects, data, options, quantized=note, bars=bars)
    return _write(subjects, data, folder, options, note, bars, {})


def _write(
    subjects: Sequence[Subject],
    data: Iterable[Any],
    folder: Path,
    options: Options,
    quantized: QuantizedModel | str,
    bars: Bars,
    extra: dict[str, Path],
) -> Report:
    """Measures, and replaces the folder; what was measured is kept until that is done."""
    kept = resume_folder(folder)
    found = build(subjects, data, options, quantized=quantized, folder=kept, bars=bars)
    publish(folder, pages(found) | {name: path.read_bytes() for name, path in extra.items()})
    Store(kept).clear()
    return found


@contextmanager
def _workplace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _float_file(work: Path, graph: FloatGraph, target_name: str) -> Path:
    chosen = target(target_name)
    path = work / "float.onnx"
    write_onnx(float_onnx(graph, chosen.opset, chosen.ir_version), path)
    return path


def _reference(work: Path, file: Path, reference: Path | Captured | None) -> tuple[Path, str]:
    """A file of the float model, and what it is."""
    if isinstance(reference, Captured):
        info = FileInfo.of(read_onnx(file))
        name = DEFAULT if info is None else info.target
        return _float_file(work, reference.graph, name), "the float model, exported by qtool"
    if reference is not None:
        read_onnx(reference)
        return reference, f"the file {reference.name}"
    path = work / "float.onnx"
    onnx.save_model(float_twin(file), path)
    return (
        path,
        "the int8 file in float arithmetic, with its rounded weights: no float model was given",
    )


def _behind(
    file: Path, reference: Path | Captured | None, sample: Batch | None
) -> QuantizedModel | str:
    """The quantized model that a file came from, or why it cannot be had."""
    if not isinstance(reference, Captured) or sample is None:
        return "the layers can only be examined with the float model; pass --model"
    return restored(file, reference, sample)


def _maker(model: onnx.ModelProto) -> str:
    version = version_of(model)
    return f"made by qtool {version}" if version else f"made by {model.producer_name or 'unknown'}"


def _words(file: Path) -> str:
    kind = "quantized" if is_quantized(file) else "float"
    return f"{kind}, {_maker(read_onnx(file))}"


def _names(files: Sequence[Path]) -> list[str]:
    """Short names that differ: file names, with the folder where these repeat."""
    stems = [f.name.removesuffix(".onnx") for f in files]
    if len(set(stems)) == len(stems):
        return stems
    return [str(f).removesuffix(".onnx") for f in files]
