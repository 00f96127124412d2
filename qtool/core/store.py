"""Intermediate results on disk, so that an interrupted run resumes."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np

from qtool.core.atomic import write_atomic
from qtool.core.records import from_json, to_json
from qtool.core.types import Array

T = TypeVar("T")
Arrays = Mapping[str, Array]


class Store:
    """Named results in a folder. Writes are atomic: a kill leaves the old or the new result.

    Attributes:
        folder: where results are stored, made with the first one; None: nowhere, and nothing is
            ever loaded.
        key: digest of models, data and options. Results stored with another key are ignored.
    """

    def __init__(self, folder: Path | None = None, key: str = "") -> None:
        self.folder = folder
        self.key = key

    def load(self, name: str, key: str = "") -> dict[str, Array] | None:
        """Return the arrays stored under `name` and this key; None if missing or damaged."""
        if self.folder is None:
            return None
        try:
            whole = io.BytesIO((self.folder / f"{name}.npz").read_bytes())
            with np.load(whole, allow_pickle=False) as file:
                arrays = {k: file[k] for k in file.files}
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
            return None
        return arrays if str(arrays.pop("key", "")) == f"{self.key}/{key}" else None

    def save(self, name: str, arrays: Arrays, key: str = "") -> None:
        """Store arrays under `name`, in place of older ones."""
        if self.folder is None:
            return
        buffer = io.BytesIO()
        np.savez(buffer, key=np.array(f"{self.key}/{key}"), **arrays)  # type: ignore[arg-type]  # names are the caller's
        write_atomic(self.folder / f"{name}.npz", buffer.getvalue())

    def load_record(self, name: str, kind: type[T]) -> T | None:
        """Return the dataclass stored under `name`; None if missing, or of an older qtool."""
        if (stored := self.load(name)) is not None:
            with suppress(KeyError, TypeError, ValueError):
                return from_json(kind, json.loads(str(stored["json"])))
        return None

    def load_or_make(self, name: str, kind: type[T], make: Callable[[], T]) -> T:
        """Return the dataclass stored under `name`; otherwise make and store it."""
        if (record := self.load_record(name, kind)) is None:
            record = make()
            self.save(name, {"json": np.array(json.dumps(to_json(record)))})
        return record

    def clear(self) -> None:
        """Remove the folder with all results."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
