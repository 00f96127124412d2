"""What a search has found out, kept on disk as it is found: a kill loses what it was at, no more.

One folder, one search: `tune.json` says of which model, data and options it is, and whoever comes
with others is refused. Every evaluation is a file of JSON, by the key of its recipe.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.core.atomic import resolve, write_atomic
from qtool.core.data import batches
from qtool.core.errors import FileError
from qtool.core.records import from_json, to_json
from qtool.core.store import Store
from qtool.core.types import Array
from qtool.planning.recipe import Recipe
from qtool.search.judge import Score

_HEAD = "tune.json"
SCHEMA = 1


@dataclass(frozen=True)
class Trial:
    """One configuration as a file that was run.

    number: when it was evaluated, from 1. accuracy: of its recipe. choices: of each group.
    speedup: time of the float model over its own, with the interval. size: bytes. share: of the
    MACs in integers. seconds: what finding out took. predicted_noise, predicted_time: what the
    additive model said before.
    """

    key: str
    number: int
    accuracy: str
    choices: tuple[str, ...]
    score: Score
    speedup: float
    speedup_low: float
    speedup_high: float
    size: int
    share: float
    seconds: float
    predicted_noise: float
    predicted_time: float


class Archive:
    """Without a folder all is kept in memory alone."""

    def __init__(self, folder: Path | None, marks: Mapping[str, str]) -> None:
        """
        Args:
            marks: what the results depend on, by a word for it.

        Raises:
            FileError: the folder holds results of something else, or cannot be written.
        """
        self.folder = folder
        self.trials: dict[str, Trial] = {}
        if folder is not None:
            _open(folder, {"schema": str(SCHEMA), **marks})
            self.trials = dict(_evaluations(folder))

    def store(self, key: str) -> Store:
        """Where measurements lie that only hold under a key."""
        return Store(None if self.folder is None else self.folder / "measured", key)

    def path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / name

    def add(self, found: Trial) -> None:
        self.trials[found.key] = found
        if self.folder is not None:
            text = json.dumps(to_json(found), indent=1)
            write_atomic(self.folder / f"{found.key}.json", text.encode())


def _open(folder: Path, marks: Mapping[str, str]) -> None:
    head = resolve(folder) / _HEAD
    try:
        if folder.is_dir() and any(folder.iterdir()) and not head.exists():
            raise FileError(f"{folder} is no archive of a search; name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        kept = json.loads(head.read_text("utf-8")) if head.exists() else None
    except (OSError, ValueError) as error:
        raise FileError(f"{folder} cannot be used as an archive ({error})") from error
    if kept is None:
        write_atomic(head, json.dumps(dict(marks), indent=1).encode())
        return
    other = [what for what in marks if kept.get(what) != marks[what]]
    if other:
        raise FileError(
            f"{folder} holds results of another {' and '.join(other)}; name another folder, or "
            "remove this one to begin anew"
        )


def _evaluations(folder: Path) -> Iterable[tuple[str, Trial]]:
    for path in sorted(folder.glob("*.json")):
        if path.name != _HEAD:
            try:
                found = from_json(Trial, json.loads(path.read_text("utf-8")))
            except (OSError, KeyError, TypeError, ValueError) as error:
                raise FileError(f"{path} is damaged ({error!r}); remove it to go on") from error
            yield found.key, found


def recipe_key(recipe: Recipe) -> str:
    """What an evaluation is found by: 16 digits."""
    return hashlib.sha256(json.dumps(recipe.digest_json()).encode()).hexdigest()[:16]


def data_digest(data: Iterable[Any], labels: Array | None = None) -> str:
    """A hash of all values, in order. Reads the data once."""
    digest = hashlib.sha256()
    for batch in batches(data):
        for name, tensor in batch.tensors():
            array = np.ascontiguousarray(tensor.detach().cpu().numpy())
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
    if labels is not None:
        digest.update(np.ascontiguousarray(labels).tobytes())
    return digest.hexdigest()[:32]
