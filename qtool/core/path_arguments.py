"""Checks of path arguments: numbers, None and bytes are refused before any work. The folder of a
model file stands for it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from qtool.core.argument_names import check_keywords
from qtool.core.errors import FileError
from qtool.core.paths import is_dir, is_file
from qtool.core.remedies import CallEdit, OtherFile

QUANTIZE_CONFIG = "quantize_config.json"
"""In a folder that qtool wrote: how each model file was quantized."""
GENAI_CONFIG = "genai_config.json"
"""In a folder that onnxruntime-genai loads, whatever tool wrote it."""
_PATTERNS = ("*.onnx", "*.tflite", "onnx/*.onnx")

_P = ParamSpec("_P")
_R = TypeVar("_R")
_NO_PATH = (bool, int, float, complex, bytes, bytearray, memoryview)


def accepts_paths(
    *names: str, mixed: str = "", models: str = ""
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function to check its path arguments before it is called.

    Args:
        names: arguments that take a path or a list of paths; None is allowed if it is the default.
        mixed: arguments that also take other objects, separated by spaces: only numbers and bytes
            are refused.
        models: arguments that name model files: a folder is replaced by the file in it.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)

        @wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                check_keywords(function, kwargs)
                return function(*args, **kwargs)  # raises the error of a wrong call
            arguments = bound.arguments
            for name in (n for n in (*names, *mixed.split()) if n in arguments):
                value, default = arguments[name], signature.parameters[name].default
                if value is None and default is None:
                    continue
                several = "Sequence" in str(signature.parameters[name].annotation)
                if several and isinstance(value, str | os.PathLike):
                    raise FileError(
                        f"{name} is {os.fspath(value)!r}", CallEdit("give a list of paths")
                    )
                for each in value if several and _several(value) else [value]:
                    _check(name, each, name in names)
            for name in (n for n in models.split() if n in arguments):
                value = arguments[name]
                arguments[name] = [*map(_file, value)] if _several(value) else _file(value)
            return function(*bound.args, **bound.kwargs)

        return checked

    return decorate


def _several(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _file(value: Any) -> Any:
    return model_file(value) if isinstance(value, str | os.PathLike) and is_dir(value) else value


def _check(name: str, value: Any, only_path: bool) -> None:
    bad = not isinstance(value, str | os.PathLike) if only_path else isinstance(value, _NO_PATH)
    bad = bad or value is None
    if not bad and isinstance(value, os.PathLike):
        bad = isinstance(os.fspath(value), bytes)
    if bad:
        what = "None" if value is None else f"of the type {type(value).__name__}"
        raise FileError(f"{name} is {what}", CallEdit("give a path as a str or a pathlib.Path"))


def holds_file(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder is that of model files, not of a float model of torch."""
    place = Path(folder)
    float_model = is_file(place / "config.json") and any(place.glob("*.safetensors"))
    return is_file(place / QUANTIZE_CONFIG) or (is_file(place / GENAI_CONFIG) and not float_model)


def model_file(path: str | os.PathLike[str]) -> Path:
    """Return the only model file of a folder; another path as it is.

    Raises:
        FileError: the folder has no model file, or several.
    """
    folder = Path(path)
    if not is_dir(folder):
        return folder
    files = sorted(file for pattern in _PATTERNS for file in folder.glob(pattern))
    if not files:
        if (folder / "config.json").is_file():
            raise FileError(
                f"{path} is the folder of a float model, not of a file",
                CallEdit(f"compare a file with it by `qtool evaluate FILE --model {path}`"),
            )
        raise FileError(
            f"{path} is a folder without an .onnx or .tflite file",
            OtherFile("give a file, or the folder that `qtool quantize` wrote"),
        )
    if len(files) > 1:
        names = ", ".join(file.relative_to(folder).as_posix() for file in files)
        raise FileError(
            f"{path} has several model files ({names})", OtherFile(f"name one, as {files[0]}")
        )
    return files[0]
