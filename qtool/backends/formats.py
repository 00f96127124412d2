"""The formats of model files, a row for each: opening files, reading them, running them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qtool.backends.model_file import FileFormat, ModelFile
from qtool.backends.onnx.initializers import notes_on_inputs
from qtool.backends.onnxruntime.onnx_file import OnnxFile
from qtool.backends.onnxruntime.session import OnnxSession
from qtool.backends.session import OtherRuntime, Session, in_order_of
from qtool.core import plugins
from qtool.core.errors import FileError, OptionError, PlanError, missing
from qtool.core.file_forms import is_tflite
from qtool.core.on_use import OnUse, load
from qtool.core.option_names import (
    MODEL_FORMATS,
    NATIVE,
    RUNTIMES,
    TARGETS,
    TFLITE_SUFFIX,
    add_format,
    unknown_name,
)
from qtool.core.paths import is_file
from qtool.core.remedies import CallEdit, OtherFile

if TYPE_CHECKING:
    from qtool.core.graph import FloatGraph
    from qtool.planning.targets import Target


_HERE = "qtool.backends.onnxruntime"


def _session(path: str | Path, threads: int) -> OnnxSession:
    """Open a file, as written where this machine lacks the kernels that it is for."""
    here = not Path(path).is_file() or OnnxFile(Path(path)).runs_here
    return OnnxSession(path, threads, as_written=not here)


ONNX = FileFormat(
    ("qdq", "qoperator"),
    OnnxFile.suffix,
    lambda _: True,
    OnnxFile,
    _session,
    OnUse("qtool.backends.onnx.export:write_float"),
    OnUse(f"{_HERE}.planned_export:OnnxExport"),
    OnUse("qtool.backends.runtimes:check_measurable"),
    tuple(map(load, plugins.parts("runtimes").values())),
)


FORMATS: list[FileFormat] = [*map(load, plugins.parts("formats").values()), ONNX]
"""The first that fits a file opens it; ONNX, the last, refuses what is no model."""


def register(new: FileFormat) -> None:
    """Add a format, before all others.

    Raises:
        PlanError: one of its names, or its suffix, is taken.
    """
    names = [name for f in FORMATS for name in f.names]
    if taken := next((name for name in new.names if name in names), None):
        raise PlanError(f"format '{taken}' is registered already", CallEdit("choose another name"))
    if new.suffix in MODEL_FORMATS:
        raise PlanError(
            f"files of another format end in '{new.suffix}'", CallEdit("choose another suffix")
        )
    FORMATS.insert(0, new)
    add_format(new.names, new.suffix)


def format_of(name: str) -> FileFormat:
    """Return the format that writes "qdq", "qoperator", "tflite", ...; see `FileFormat.names`."""
    return next(f for f in FORMATS if name in f.names)


def by_suffix(suffix: str) -> FileFormat:
    """Return the format of files with a suffix; ONNX for an unknown one."""
    return next((f for f in FORMATS if f.suffix == suffix.lower()), ONNX)


def format_for(target: Target) -> FileFormat:
    """Return the format that the runtime of a target reads."""
    return next(f for f in FORMATS if set(f.names) & set(target.file.formats))


def own_format(target: Target) -> str:
    """Return the name of the format that the runtime of a target reads."""
    return next(n for n in target.file.formats if n in format_for(target).names)


def format_of_file(path: str | Path) -> FileFormat:
    """Return the format of an existing file, by its suffix or its contents.

    Raises:
        InstallError: what reads the file is no part of this installation.
    """
    if is_tflite(path) and TFLITE_SUFFIX not in [f.suffix for f in FORMATS]:
        raise plugins.missing(f"{Path(path).name}: reading {TFLITE_SUFFIX} files")
    return next(f for f in FORMATS if f.fits(path))


def open_file(path: str | Path) -> ModelFile:
    """Return a file of any format.

    Raises:
        FileError: there is no such file, or it is no model.
    """
    path = Path(path)
    if not is_file(path):
        raise missing(path, FileError)
    return format_of_file(path).open(path)


def check_quantized(path: str | Path) -> None:
    """Check that a file has something to verify.

    Raises:
        FileError: no model, or one without quantized operators.
    """
    if not open_file(path).is_quantized:
        raise FileError(
            f"{path}: it has no quantized operator, so there is nothing to verify",
            OtherFile("give the file that `qtool quantize` wrote"),
        )


def warnings_on_files(file: ModelFile, against: Path) -> list[str]:
    """Return a sentence if a file that should be quantized is not, and one if the float file that
    its speed is relative to is slower than it has to be."""
    mark, other = "no tensor in it is int8 or of fewer bits", open_file(against)
    texts = [] if file.is_quantized else [f"{file.path.name} is not quantized: {mark}"]
    return texts + (notes_on_inputs(other.outline) if isinstance(other, OnnxFile) else [])


def is_model(path: Path) -> bool:
    """Return whether a file is a model, by its suffix or its contents."""
    known = any(f.suffix == path.suffix or (f is not ONNX and f.fits(path)) for f in FORMATS)
    return known or is_tflite(path)


def write_float(graph: FloatGraph, path: str | Path, target_name: str = TARGETS[0]) -> Path:
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


def open_model(path: str | Path, threads: int = 0, runtime: str = NATIVE) -> Session:
    """Open a file in a runtime; see `FileFormat.session`.

    Args:
        path: the file.
        threads: number of threads; 0 lets the runtime choose.
        runtime: NATIVE for that of the file's format on this machine, or the name of another one.

    Raises:
        FileError: not a model.
        OptionError: the runtime does not run files of this format.
        InstallError: the runtime of this format is not installed, or the plugin of another one.
        VerificationError: the runtime refuses the file, or another runtime is not installed.
    """
    used = format_of_file(path)
    if runtime == NATIVE:
        return used.session(path, threads)
    others = {r.name: r for r in used.other_runtimes}
    if runtime in others:
        return others[runtime].session(path, threads)
    if used is ONNX and runtime in RUNTIMES:
        raise plugins.missing(f"the runtime '{runtime}'")
    sentence = unknown_name("runtime", runtime, (NATIVE, *others))
    raise OptionError(f"{Path(path).name}: {sentence}")


def open_like(like: Session, path: str | Path, runtime: str = NATIVE) -> Session:
    """Open a file to run on the arrays of another session; see `open_model` and `in_order_of`."""
    return in_order_of(like, open_model(path, runtime=runtime))


def runtime_title(name: str, suffix: str = ONNX.suffix) -> str:
    """Return a runtime with its version; "" for ONNX Runtime on this machine.

    Args:
        name: NATIVE, or the name of another runtime.
        suffix: file name extension of the files that run.
    """
    return by_suffix(suffix).runtime() if name == NATIVE else str(other_runtime(name))


def other_runtime(name: str) -> OtherRuntime:
    """Return a runtime besides NATIVE by its name.

    Raises:
        InstallError: this installation lacks its plugin.
    """
    others = (each for used in FORMATS for each in used.other_runtimes)
    runtime = next((each for each in others if each.name == name), None)
    if runtime is None:
        raise plugins.missing(f"the runtime '{name}'")
    return runtime
