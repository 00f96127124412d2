"""Trials of a search on disk: an interruption loses at most the evaluation in progress.

A folder belongs to one search: `tune.json` holds hashes of its model, data and options, and a
search with others is refused. Each trial is a JSON file named by the key of its recipe.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.core.atomic import resolve, write_atomic
from qtool.core.data import batches
from qtool.core.errors import MALFORMED, FileError
from qtool.core.records import from_json, to_json
from qtool.core.remedies import OtherFile
from qtool.core.types import Array
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.planning.recipe import Recipe
from qtool.plugins.search.judge import Score

_HEAD = "tune.json"
SCHEMA = 3


@dataclass(frozen=True)
class Trial:
    """One evaluated file.

    Attributes:
        key: key of its recipe.
        accuracy: accuracy level of its recipe.
        choices: precision of each layer.
        score: error and metric.
        speed: float time / its time.
        size: bytes of the file.
        share: share of the MACs in integer kernels.
        seconds: duration of the evaluation.
    """

    key: str
    accuracy: str
    choices: tuple[str, ...]
    score: Score
    speed: Ratio
    size: int
    share: float
    seconds: float

    @property
    def speedup(self) -> float:
        """Median of the speed-ups over float."""
        return self.speed.median

    @property
    def counts(self) -> str:
        """How many layers have each precision, as text."""
        return ", ".join(f"{count} {name}" for name, count in Counter(self.choices).items())


class Archive:
    """Trials of a search; in memory only if there is no folder."""

    def __init__(self, folder: Path | None, marks: Mapping[str, str]) -> None:
        """
        Args:
            marks: what the results depend on: description -> hash or value.

        Raises:
            FileError: the folder holds results of another search, or cannot be written.
        """
        self.folder = folder
        self.trials: dict[str, Trial] = {}
        if folder is not None:
            _open(folder, {"schema": str(SCHEMA), **marks})
            self.trials = dict(_evaluations(folder))

    def add(self, trial: Trial) -> None:
        """Add a trial and write it to the folder."""
        self.trials[trial.key] = trial
        if self.folder is not None:
            text = json.dumps(to_json(trial), indent=1)
            write_atomic(self.folder / f"{trial.key}.json", text.encode())


def _open(folder: Path, marks: Mapping[str, str]) -> None:
    head = resolve(folder) / _HEAD
    try:
        if folder.is_dir() and any(folder.iterdir()) and not head.exists():
            raise FileError(
                f"{folder} is not an archive of a search", OtherFile("choose a new folder")
            )
        folder.mkdir(parents=True, exist_ok=True)
        stored = json.loads(head.read_text("utf-8")) if head.exists() else None
    except (OSError, *MALFORMED) as error:
        raise FileError(f"{folder} cannot be used as an archive ({error})") from error
    if stored is None:
        write_atomic(head, json.dumps(dict(marks), indent=1).encode())
        return
    values = stored if isinstance(stored, dict) else {}
    other = [what for what in marks if values.get(what) != marks[what]]
    if other:
        raise FileError(
            f"{folder} holds results of another {' and '.join(other)}",
            OtherFile("choose another folder"),
            OtherFile("remove this one to start again"),
        )


def _evaluations(folder: Path) -> Iterable[tuple[str, Trial]]:
    for path in sorted(folder.glob("*.json")):
        if path.name != _HEAD:
            try:
                trial = from_json(Trial, json.loads(path.read_text("utf-8")))
            except (OSError, *MALFORMED) as error:
                raise FileError(
                    f"{path} is damaged ({error!r})", OtherFile("remove it to continue")
                ) from error
            yield trial.key, trial


def recipe_key(recipe: Recipe) -> str:
    """Return the key of a recipe: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(recipe.to_json()).encode()).hexdigest()[:16]


def data_digest(data: Iterable[Any], labels: Array | None = None) -> str:
    """Return a hash of all values, in order. Reads the data once."""
    digest = hashlib.sha256()
    for batch in batches(data):
        for name, tensor in batch.tensors():
            array = np.ascontiguousarray(tensor.detach().cpu().numpy())
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
    if labels is not None:
        digest.update(np.ascontiguousarray(labels).tobytes())
    return digest.hexdigest()[:32]
