"""The formats of model files, a row for each."""

from __future__ import annotations

from pathlib import Path

from qtool.backends.model_file import FileFormat, ModelFile
from qtool.backends.onnxruntime.format import ONNX
from qtool.backends.open_files import READABLE, check_plugin
from qtool.core.errors import FileError, PlanError
from qtool.core.graph import FloatGraph
from qtool.core.missing_files import missing
from qtool.core.on_use import load
from qtool.core.option_names import (
    C_SUFFIXES,
    MODEL_FORMATS,
    add_format,
)
from qtool.core.paths import is_file
from qtool.core.plugins import parts
from qtool.core.remedies import CallEdit
from qtool.planning.targets import DEFAULT, Target, target

FORMATS: list[FileFormat] = [*map(load, parts("formats").values()), ONNX]
"""The first that fits a file opens it; ONNX, the last, refuses what is no model."""


def register(new: FileFormat) -> None:
    """Add a format, before all others.

    Raises:
        PlanError: one of its names, or its suffix, is taken.
    """
    names = [name for f in FORMATS for name in f.names]
    if taken := next((name for name in new.names if name in names), None):
        raise PlanError(f"format '{taken}' is registered already", CallEdit("choose another name"))
    if new.suffix in (*MODEL_FORMATS, *C_SUFFIXES):
        raise PlanError(
            f"files of another format end in '{new.suffix}'", CallEdit("choose another suffix")
        )
    FORMATS.insert(0, new)
    READABLE.insert(0, new.readable)
    add_format(new.names, new.suffix)


def format_of(name: str) -> FileFormat:
    """Return the format that writes "qdq", "qoperator", "tflite", ...; see `FileFormat.names`."""
    return next(f for f in FORMATS if name in f.names)


def by_suffix(suffix: str) -> FileFormat:
    """Return the format of files with a suffix; ONNX for an unknown one."""
    return next((f for f in FORMATS if f.suffix == suffix.lower()), ONNX)


def format_of_file(path: str | Path) -> FileFormat:
    """Return the format of an existing file, by its suffix or its contents."""
    check_plugin(path)
    return next(f for f in FORMATS if f.fits(path))


def own_format(name: str) -> str:
    """Return the name of the format that the runtime of a target, by its name, reads.

    Raises:
        PlanError: unknown target.
    """
    chosen = target(name)
    return next(n for n in chosen.file.formats if n in format_for(chosen).names)


def format_for(target: Target) -> FileFormat:
    """Return the format that the runtime of a target reads."""
    return next(f for f in FORMATS if set(f.names) & set(target.file.formats))


def open_file(path: str | Path) -> ModelFile:
    """Return a file of any format.

    Raises:
        FileError: there is no such file, or it is no model.
    """
    path = Path(path)
    if not is_file(path):
        raise missing(path, FileError)
    return format_of_file(path).open(path)


def write_float(graph: FloatGraph, path: str | Path, target_name: str = DEFAULT) -> Path:
    """Write the canonical graph in float, which int8 files are compared with; return the path.

    Args:
        graph: the graph.
        path: its suffix names the format; any other one is ONNX, in the operator set of the target.
        target_name: name of the target.

    Raises:
        ExportError: an operator cannot be written.
        FileError: the file cannot be written.
    """
    return by_suffix(Path(path).suffix).write_float(graph, path, target_name)
