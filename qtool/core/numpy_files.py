"""Batches from files: a folder of arrays, one .npy or .npz file."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qtool.core.downloads import DOWNLOAD, archive_expansion_error, check_download
from qtool.core.errors import DataError, describe, missing
from qtool.core.paths import is_dir, is_file
from qtool.core.remedies import OtherFile
from qtool.core.types import Array

SUFFIXES = (".npy", ".npz")

Positions = Array
Rows = slice | Positions


@dataclass(frozen=True)
class NumpyFiles:
    """The arrays of one file, or of all .npy and .npz files of a folder in order of their names.

    Arrays have the samples along their first dimension and are cut into batches. An .npz with
    several arrays yields dicts: its array names are the model's input names.

    Attributes:
        path: file or folder.
        batch_size: samples per batch.
        exclude: names of arrays that are no inputs, labels for instance.
        samples: number of evenly spaced samples to use; None: all.
    """

    path: Path
    batch_size: int = 32
    exclude: tuple[str, ...] = ()
    samples: int | None = None

    def files(self) -> list[Path]:
        """Return the files in order.

        Raises:
            DataError: there is none, or it is of another type.
        """
        if is_dir(self.path):
            files = sorted(p for p in self.path.iterdir() if p.suffix in SUFFIXES and p.is_file())
            if not files:
                raise DataError(f"{self.path} holds no .npy or .npz file")
            return files
        if not is_file(self.path):
            raise missing(self.path, DataError, "file or folder")
        if self.path.suffix not in SUFFIXES:
            raise DataError(f"{self.path}: data files are .npy or .npz, or a folder of them")
        return [self.path]

    def __len__(self) -> int:
        """Number of batches."""
        return sum(-(-len(rows) // self.batch_size) for _, rows in self._parts())

    @property
    def positions(self) -> Array | None:
        """Positions of the samples among those of all files, int64; None: all samples."""
        if self.samples is None:
            return None
        return even_positions(sum(self._lengths()), self.samples)

    @property
    def sample_count(self) -> int:
        """Number of samples in all batches."""
        positions = self.positions
        return sum(self._lengths()) if positions is None else len(positions)

    @property
    def name(self) -> str:
        """A text that differs if the files, their sizes or the batches do."""
        files = [(f.name, f.stat().st_size) for f in self.files()]
        part = "" if self.samples is None else f", {self.samples} samples"
        return f"{files} in batches of {self.batch_size}, without {self.exclude}{part}"

    def __iter__(self) -> Iterator[Any]:
        return self.every(0, 1)

    def every(self, first: int, step: int) -> Iterator[Any]:
        """Yield every `step`-th batch from the `first` on, without copying the others."""
        return self.as_arrays(first, step)

    def as_arrays(self, first: int = 0, step: int = 1) -> Iterator[Any]:
        """Yield the same batches of arrays, whatever `every` hands out."""
        for index, (arrays, rows) in enumerate(self._cuts()):
            if index >= first and (index - first) % step == 0:
                cut = {k: a[rows] for k, a in arrays.items()}
                yield next(iter(cut.values())) if len(cut) == 1 else cut

    def _cuts(self) -> Iterator[tuple[dict[str, Array], Rows]]:
        """Yield the arrays and the rows of each batch."""
        for arrays, rows in self._parts():
            for start in range(0, len(rows), self.batch_size):
                stop = start + self.batch_size
                yield arrays, slice(start, stop) if isinstance(rows, range) else rows[start:stop]

    def _parts(self) -> Iterator[tuple[dict[str, Array], range | Positions]]:
        """Yield the arrays of each file, and the rows of it to use."""
        positions, before = self.positions, 0
        for file in self.files():
            arrays, count = self._read(file)
            if positions is None:
                yield arrays, range(count)
            else:
                inside = (positions >= before) & (positions < before + count)
                yield arrays, positions[inside] - before
            before += count

    def _lengths(self) -> list[int]:
        return [self._read(file)[1] for file in self.files()]

    def _read(self, file: Path) -> tuple[dict[str, Array], int]:
        """Return the arrays of a file that are inputs, and how many samples they have."""
        arrays = {k: a for k, a in read_arrays(file).items() if k not in self.exclude}
        if not arrays:
            raise DataError(f"{file} holds no array of inputs")
        if scalars := [k for k, a in arrays.items() if not a.ndim]:
            name = f"array '{scalars[0]}'" if scalars[0] else "its array"
            raise DataError(f"{file}: {name} is a single number, not a list of samples")
        lengths = {k: len(a) for k, a in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{file}: its arrays have different numbers of samples: {lengths}")
        return arrays, next(iter(lengths.values()))


def check_source(source: str | Path) -> None:
    """Check that a file or folder of data exists, before its model is loaded.

    Raises:
        DataError: it does not. The function of `package.module:function` is not looked for.
    """
    if not (":" in str(source) or is_file(source) or is_dir(source)):
        raise missing(source, DataError, "file or folder")


def has_arrays(path: Path) -> bool:
    """Return whether a path is a folder with .npy or .npz files."""
    return is_dir(path) and any(p.suffix in SUFFIXES for p in path.iterdir())


def array_names(path: Path) -> frozenset[str]:
    """Return the names of the arrays of an .npz file; none of another or a damaged file."""
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return frozenset(name.removesuffix(".npy") for name in archive.namelist())
    return frozenset()


def even_positions(count: int, samples: int | None) -> Array:
    """Return evenly spaced positions, int64 [min(count, samples)].

    Data in the order of its classes keeps all of them. None: all positions.
    """
    if samples is None or samples >= count:
        return np.arange(count)
    return np.arange(samples) * count // samples


def read_arrays(file: Path) -> dict[str, Array]:
    """Return the arrays of a .npz by name, or that of a .npy under "". Pickled objects are refused.

    Raises:
        DataError: the file cannot be read.
    """
    check_download(file, DataError)
    if file.suffix == ".npz" and not zipfile.is_zipfile(file):  # numpy would leave it open
        raise DataError(f"{file} cannot be read as arrays", DOWNLOAD)
    if (why := archive_expansion_error(file)) is not None:
        raise DataError(f"{file} is not read: {why}", OtherFile("give the intended file"))
    try:
        mode: Literal["r"] | None = "r" if file.suffix == ".npy" else None
        content = np.load(file, allow_pickle=False, mmap_mode=mode)
        if isinstance(content, np.ndarray):
            return {"": content}
        with content:
            arrays = {key: content[key] for key in content.files}
    except Exception as error:  # a damaged file makes numpy, zipfile and tokenize raise anything
        why = describe(error)
        if "pickle" in why or "Python objects" in why:  # numpy advises to unpickle
            why = "it is damaged, or holds Python objects, which are not loaded"
            raise DataError(
                f"{file} cannot be read as arrays: {why}", OtherFile("save numbers")
            ) from error
        if "mmap length" in why:
            why = "it is shorter than its header says"
            raise DataError(f"{file} cannot be read as arrays: {why}", DOWNLOAD) from error
        raise DataError(f"{file} cannot be read as arrays: {why}") from error
    if odd := [key for key, a in arrays.items() if not isinstance(a, np.ndarray)]:
        raise DataError(f"{file} cannot be read as arrays: its member '{odd[0]}' is none")
    return arrays


def read_labels(file: Path, key: str) -> Array:
    """Return one array of a .npz by name; raise DataError if there is none."""
    arrays = read_arrays(file)
    if key not in arrays:
        raise DataError(f"{file} holds no array '{key}'; it holds {', '.join(arrays)}")
    return arrays[key]


def find_labels(key: str, data: Path) -> Array:
    """Return class numbers from the .npy or .npz file `key`, or from array `key` of the data file.

    Raises:
        DataError: neither exists, or the file has several arrays and none called "labels".
    """
    if not is_file(key):
        if not is_file(data) or data.suffix != ".npz":
            text = f"there is no labels file {key}, and {data} is no .npz that could hold them"
            folders = "; folders of classes are labels in any case" if is_dir(data) else ""
            raise DataError(text + folders)
        return read_labels(data, key)
    arrays = read_arrays(Path(key))
    if len(arrays) > 1 and "labels" not in arrays:
        raise DataError(
            f"{key} holds {', '.join(arrays)}", OtherFile("name the one with the labels 'labels'")
        )
    return arrays.get("labels", next(iter(arrays.values())))
