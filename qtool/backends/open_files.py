"""Opening model files of any format without torch: to read them, and to run them."""

from __future__ import annotations

from pathlib import Path

from qtool.backends.onnxruntime.readable import READABLE as ONNX
from qtool.backends.readable_file import ReadableFile, ReadableFormat
from qtool.backends.session import OtherRuntime, Session
from qtool.core import plugins
from qtool.core.errors import FileError, OptionError
from qtool.core.file_forms import is_tflite
from qtool.core.missing_files import missing
from qtool.core.on_use import load
from qtool.core.option_names import NATIVE, RUNTIMES, TFLITE_SUFFIX, unknown_name
from qtool.core.paths import is_file
from qtool.core.remedies import OtherFile

READABLE: list[ReadableFormat] = [*map(load, plugins.parts("readable_formats").values()), ONNX]
"""The first that fits a file opens it; ONNX, the last, refuses what is no model."""


def open_readable(path: str | Path) -> ReadableFile:
    """Return a file of any format.

    Raises:
        FileError: there is no such file, or it is no model.
    """
    path = Path(path)
    if not is_file(path):
        raise missing(path, FileError)
    return _format_of(path).open(path)


def _format_of(path: str | Path) -> ReadableFormat:
    check_plugin(path)
    return next(f for f in READABLE if f.fits(path))


def check_plugin(path: str | Path) -> None:
    """Check that what reads a file is a part of this installation.

    Raises:
        InstallError: it is not.
    """
    if is_tflite(path) and TFLITE_SUFFIX not in [f.suffix for f in READABLE]:
        raise plugins.missing(f"{Path(path).name}: reading {TFLITE_SUFFIX} files")


def check_quantized(path: str | Path) -> None:
    """Check that a file has something to verify.

    Raises:
        FileError: no model, or one without quantized operators.
    """
    if not open_readable(path).is_quantized:
        raise FileError(
            f"{path}: it has no quantized operator, so there is nothing to verify",
            OtherFile("give the file that `qtool quantize` wrote"),
        )


def quantization_warnings(file: ReadableFile) -> list[str]:
    """Return a sentence if a file that should be quantized is not."""
    if file.is_quantized:
        return []
    return [f"{file.path.name} is not quantized: no tensor in it is int8 or of fewer bits"]


def is_model(path: Path) -> bool:
    """Return whether a file is a model, by its suffix or its contents."""
    known = any(f.suffix == path.suffix or (f is not ONNX and f.fits(path)) for f in READABLE)
    return known or is_tflite(path)


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
    used = _format_of(path)
    if runtime == NATIVE:
        return used.session(path, threads)
    names = [r.name for r in used.other_runtimes]
    if runtime not in names:
        _check_installed(runtime, used)
        sentence = unknown_name("runtime", runtime, (NATIVE, *names))
        raise OptionError(f"{Path(path).name}: {sentence}")
    return used.other_runtimes[names.index(runtime)].session(path, threads)


def _check_installed(runtime: str, used: ReadableFormat) -> None:
    if used is ONNX and runtime in RUNTIMES:
        raise plugins.missing(f"the runtime '{runtime}'")


def runtime_title(name: str, suffix: str = ONNX.suffix) -> str:
    """Return a runtime with its version; "" for ONNX Runtime on this machine.

    Args:
        name: NATIVE, or the name of another runtime.
        suffix: file name extension of the files that run.
    """
    if name != NATIVE:
        return str(other_runtime(name))
    return next((f for f in READABLE if f.suffix == suffix.lower()), ONNX).runtime()


def other_runtime(name: str) -> OtherRuntime:
    """Return a runtime besides NATIVE by its name.

    Raises:
        InstallError: this installation lacks its plugin.
    """
    others = (each for used in READABLE for each in used.other_runtimes)
    runtime = next((each for each in others if each.name == name), None)
    if runtime is None:
        raise plugins.missing(f"the runtime '{name}'")
    return runtime
