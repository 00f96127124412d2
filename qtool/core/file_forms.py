"""Kinds of files by their suffixes or first bytes."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3")
"""Suffixes of files of samples."""

_TFLITE, _TFLITE_MARK, _MARK_AT = (".tflite",), b"TFL3", 4
_READ = 16


def is_torch_script(path: str | os.PathLike[str]) -> bool:
    """Return whether `torch.jit.save` wrote a file."""
    try:
        if not Path(path).is_file():  # a pipe may wait for ever
            return False
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def is_tflite(path: str | os.PathLike[str]) -> bool:
    """Return whether a path names a TFLite file: by its suffix, or by its first bytes."""
    file = Path(path)
    if file.suffix.lower() in _TFLITE:
        return True
    try:
        if not file.is_file():  # opening a pipe would wait for its writer
            return False
        with file.open("rb") as opened:
            return opened.read(_READ).startswith(_TFLITE_MARK, _MARK_AT)
    except OSError:
        return False
