"""Paths of model files: the folder of a file stands for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from qtool.core.errors import FileError
from qtool.core.paths import is_dir, is_file
from qtool.core.remedies import CallEdit, OtherFile

QUANTIZE_CONFIG = "quantize_config.json"
"""In a folder that qtool wrote: how each model file was quantized."""
GENAI_CONFIG = "genai_config.json"
"""In a folder that onnxruntime-genai loads, whatever tool wrote it."""
_PATTERNS = ("*.onnx", "*.tflite", "onnx/*.onnx")


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


def model_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the model file of each path, see `model_file`.

    Raises:
        FileError: it is a single path, or a folder has no model file, or several.
    """
    if isinstance(paths, str | os.PathLike):
        raise FileError(f"{os.fspath(paths)!r} is one path", CallEdit("give a list of paths"))
    return [*map(model_file, paths)]
