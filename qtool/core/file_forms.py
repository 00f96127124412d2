"""What a file is by its first bytes, where its name says something else."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection
from pathlib import Path

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3")
"""Suffixes of files of samples."""

TORCH_SCRIPT = "a file of TorchScript"
_SAVED = "a file of torch.save"
_PICKLED = "a file of pickled Python objects"
_ARCHIVES: tuple[tuple[str, str, Collection[str]], ...] = (
    ("constants.pkl", TORCH_SCRIPT, ()),
    ("archive_format", "a program of torch.export", (".pt2",)),
    ("data.pkl", _SAVED, (".pt", ".pth", ".ckpt", ".bin")),
    ("model.weights.h5", "a file of Keras", (".keras",)),
)
"""Name of a member of a zip archive -> what wrote the archive, and the suffixes it is to have."""
_TFLITE = (4, b"TFL3", "a file of TFLite", (".tflite",))
_BYTES: tuple[tuple[int, bytes, str, Collection[str]], ...] = (
    _TFLITE,
    (4, b"ORTM", "a model in ONNX Runtime's own format", (".ort",)),
    (0, b"GGUF", "a GGUF file of llama.cpp", (".gguf",)),
    (0, b"\x89HDF", "a file of HDF5, as Keras writes it", (".h5", ".hdf5", ".keras")),
    (0, b"\x93NUMPY", "an array of NumPy", (".npy",)),
    (0, b"PAR1", "a Parquet table", (".parquet",)),
    (8, b'{"', "a file of safetensors", (".safetensors", ".calib")),
    *((0, b"\x80" + bytes([p]), _PICKLED, (".pkl", ".pt", ".pth", ".bin")) for p in range(2, 6)),
)
"""Place of bytes in a file -> what it is, and the suffixes it is to have."""
_READ = 16


def unexpected_form(path: str | os.PathLike[str], suffix: str = "") -> str | None:
    """Return what a file is, where a file with a suffix was expected; None if it may be that.

    Args:
        path: the file.
        suffix: suffix of what was expected; by default the file's own.
    """
    form, suffixes = _form(Path(path))
    return None if (suffix or Path(path).suffix.lower()) in suffixes else form


def is_torch_script(path: str | os.PathLike[str]) -> bool:
    """Return whether `torch.jit.save` wrote a file."""
    return _form(Path(path))[0] == TORCH_SCRIPT


def is_tflite(path: str | os.PathLike[str]) -> bool:
    """Return whether a path names a TFLite file: by its suffix, or by its first bytes."""
    file, (place, mark, _, suffixes) = Path(path), _TFLITE
    if file.suffix.lower() in suffixes:
        return True
    try:
        if not file.is_file():  # opening a pipe would wait for its writer
            return False
        with file.open("rb") as opened:
            return opened.read(_READ).startswith(mark, place)
    except OSError:
        return False


def _form(file: Path) -> tuple[str | None, Collection[str]]:
    try:
        if not file.is_file():  # a pipe may wait for ever
            return None, ()
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                names = {name.rpartition("/")[2] for name in archive.namelist()}
            known = [row[1:] for row in _ARCHIVES if row[0] in names]
            arrays = any(name.endswith(".npy") for name in names)
            other = ("arrays of NumPy", (".npz",)) if arrays else ("a zip archive", (".zip",))
            return known[0] if known else other
        with file.open("rb") as opened:
            head = opened.read(_READ)
    except (OSError, ValueError, zipfile.BadZipFile):
        return None, ()
    return next((row[2:] for row in _BYTES if head.startswith(row[1], row[0])), (None, ()))
