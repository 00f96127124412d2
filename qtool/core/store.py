"""What was measured so far, kept on disk so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from qtool.core.atomic import write_atomic
from qtool.core.errors import FileError
from qtool.core.records import from_json, to_json

T = TypeVar("T")
Arrays = Mapping[str, np.ndarray[Any, Any]]


class Store:
    """Named results in a folder; every write is atomic, so a kill leaves the old or the new one.

    A result counts only for the `key` it was made under (models, data, options): what another
    run left is ignored. Without a folder nothing is kept.
    """

    def __init__(self, folder: Path | None = None, key: str = "") -> None:
        self.folder = folder
        self.key = key
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(f"cannot write {folder}: {error.strerror or error}") from error

    def load(self, name: str, key: str = "") -> dict[str, np.ndarray[Any, Any]] | None:
        """What was saved under `name` and this key; None where there is none, or it is damaged."""
        if self.folder is None:
            return None
        try:
            whole = io.BytesIO((self.folder / f"{name}.npz").read_bytes())
            with np.load(whole, allow_pickle=False) as file:
                found = {k: file[k] for k in file.files}
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
            return None
        return found if str(found.pop("key", "")) == f"{self.key}/{key}" else None

    def save(self, name: str, arrays: Arrays, key: str = "") -> None:
        """Replaces what was saved under `name`."""
        if self.folder is None:
            return
        buffer = io.BytesIO()
        np.savez(buffer, key=np.array(f"{self.key}/{key}"), **arrays)  # type: ignore[arg-type]  # names are the caller's
        write_atomic(self.folder / f"{name}.npz", buffer.getvalue())

    def load_or_make(self, name: str, kind: type[T], make: Callable[[], T], key: str = "") -> T:
        """The dataclass that was saved under `name`, or a new one, which is saved."""
        kept = self.load(name, key)
        if kept is not None:
            try:
                return from_json(kind, json.loads(str(kept["json"])))
            except (KeyError, TypeError, ValueError):
                pass  # of an older qtool
        made = make()
        self.save(name, {"json": np.array(json.dumps(to_json(made)))}, key)
        return made

    def clear(self) -> None:
        """Forgets everything, and removes the folder."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
