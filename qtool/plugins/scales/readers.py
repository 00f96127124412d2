"""The scales of other tools' files, as one kind of record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from qtool.core.errors import CalibrationError
from qtool.core.missing_files import missing
from qtool.core.paths import is_file
from qtool.plugins.scales.aimet_encodings import read_encodings
from qtool.plugins.scales.qdq_file import read_qdq
from qtool.plugins.scales.record import FileScales, TensorScale

__all__ = ["READERS", "FileScales", "TensorScale", "read_scales"]

READERS: Mapping[str, Callable[[str], FileScales]] = {
    ".onnx": read_qdq,
    ".encodings": read_encodings,
    ".json": read_encodings,
}
"""Suffix of a file -> what reads its scales."""


def read_scales(path: str | Path) -> FileScales:
    """Return the scales of a QDQ file or of encodings of AIMET.

    Raises:
        CalibrationError: no such file, another suffix, or no scales in it.
        FileError: it is not readable.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in READERS:
        raise CalibrationError(
            f"{path}: scales are read from files with the suffix {', '.join(READERS)}"
        )
    if not is_file(path):
        raise missing(path, CalibrationError)
    scales = READERS[suffix](str(path))
    if not scales.scales:
        raise CalibrationError(f"{path}: none of its scales is one of 8- or 16-bit integers")
    return scales
