"""The model file of a folder, as `qtool quantize` writes it for other libraries."""

from __future__ import annotations

import os
from pathlib import Path

from qtool.core.errors import FileError
from qtool.core.paths import is_dir

QUANTIZE_CONFIG = "quantize_config.json"
"""In a folder that qtool wrote: how each model file was quantized."""
_PATTERNS = ("*.onnx", "*.tflite", "onnx/*.onnx")


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
        raise FileError(
            f"{path} is a folder without an .onnx or .tflite file; give a file, or the folder that "
            "`qtool quantize` wrote"
        )
    if len(files) > 1:
        names = ", ".join(file.relative_to(folder).as_posix() for file in files)
        raise FileError(f"{path} has several model files ({names}); name one, as {files[0]}")
    return files[0]
