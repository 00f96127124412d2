"""Reads rows of data: folders of images or sounds, texts, saved datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtool.core.errors import DataError, describe
from qtool.core.paths import is_dir, is_file
from qtool.frontends.optional_packages import require

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3")
TEXTS = (".txt", ".jsonl")
METADATA = "metadata.jsonl"
"""Metadata in folders of images or sounds, as in `datasets`: a `file_name` per line, and more."""

_TEXT = (
    ("text", ""),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "context"),
    ("sentence", ""),
    ("question1", "question2"),
)
_LABEL = ("label", "labels", "class")


@dataclass(frozen=True)
class Row:
    """One sample.

    Attributes:
        image: path or decoded image.
        sound: path or decoded sound.
        text: the text, or the first one of two.
        pair: the second text.
        target: text that a decoder has to produce.
        label: class number or name.
    """

    image: Any = None
    sound: Any = None
    text: str | None = None
    pair: str | None = None
    target: str | None = None
    label: int | str | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which of image, sound and text the row has."""
        return tuple(k for k in ("image", "sound", "text") if getattr(self, k) is not None)

    def __str__(self) -> str:
        return str(next((v for v in (self.image, self.sound) if v is not None), self.text))


def read_rows(path: Path) -> list[Row]:
    """Return the samples of a folder by file name, or of a file in its order.

    A folder has images or sounds, optionally in a subfolder per class, with texts and labels in
    metadata.jsonl; or `Dataset.save_to_disk` wrote it. A .txt file has one text per line, a .jsonl
    file one object per line.

    Raises:
        DataError: there are no samples, or they are of different kinds.
    """
    if is_dir(path):
        rows = _saved(path) if (path / "state.json").is_file() else _folder(path)
    elif not is_file(path):
        raise DataError(f"{path}: no such file or folder")
    elif path.suffix == ".txt":
        lines = _lines(path)
        rows = [Row(text=line) for line in lines if line.strip()]
    elif path.suffix == ".jsonl":
        rows = [_row(each, f"{path}, line {at + 1}") for at, each in _objects(path)]
    else:
        known = ", ".join((".npy", ".npz", *TEXTS))
        raise DataError(f"{path}: data is a folder, a file of {known}, or package.module:function")
    if not rows:
        raise DataError(f"{path} has no samples")
    odd = next((r for r in rows if r.kinds != rows[0].kinds or not r.kinds), None)
    if odd is not None:
        raise DataError(
            f"{path}: a sample has {' and '.join(odd.kinds) or 'nothing'} ({odd}), the first "
            f"one has {' and '.join(rows[0].kinds) or 'nothing'}; give samples of one kind"
        )
    return rows


def _folder(path: Path) -> list[Row]:
    if (path / METADATA).is_file():
        return [
            _row({**each, "file_name": path / str(each.get("file_name", ""))}, str(path))
            for _, each in _objects(path / METADATA)
        ]
    rows = []
    for file in sorted(p for p in path.rglob("*") if p.suffix.lower() in (*IMAGES, *SOUNDS)):
        inside = file.relative_to(path).parts[:-1]
        label = inside[0] if inside else None
        image = file if file.suffix.lower() in IMAGES else None
        rows.append(Row(image, None if image is not None else file, label=label))
    if not rows:
        known = ", ".join((".npy", ".npz", *IMAGES, *SOUNDS))
        raise DataError(f"{path} has no data; supported files are {known}")
    if len({r.label is None for r in rows}) > 1:
        loose = next(r for r in rows if r.label is None)
        raise DataError(
            f"{path} has class folders and a file outside of them, {loose}; move it into one"
        )
    return rows


def _row(columns: Mapping[str, Any], where: str) -> Row:
    """Return a row from an object with the usual column names of datasets."""
    text, pair = next(((a, b) for a, b in _TEXT if isinstance(columns.get(a), str)), ("", ""))
    label = next((columns[k] for k in _LABEL if isinstance(columns.get(k), int | str)), None)
    image, sound = columns.get("image"), columns.get("audio")
    file = columns.get("file_name")
    if isinstance(file, Path):
        if not is_file(file):
            raise DataError(f"{where}: {METADATA} names {file.name}, which is not there")
        image, sound = (file, None) if file.suffix.lower() in IMAGES else (None, file)
    row = Row(
        image,
        sound,
        columns.get(text),
        columns.get(pair) if isinstance(columns.get(pair), str) else None,
        columns.get("target") if isinstance(columns.get("target"), str) else None,
        label,
    )
    if not row.kinds:
        names = ", ".join(dict.fromkeys(a for a, _ in _TEXT))
        raise DataError(
            f"{where} has no text, image or sound; its columns are {', '.join(map(str, columns))}, "
            f"known are {names}, image, audio"
        )
    return row


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as text: {describe(error)}") from error


def _objects(path: Path) -> Iterable[tuple[int, Mapping[str, Any]]]:
    for at, line in enumerate(_lines(path)):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {at + 1} is not JSON: {describe(error)}") from error
        if not isinstance(value, dict):
            raise DataError(f"{path}, line {at + 1} holds a {type(value).__name__}, not an object")
        yield at, value


def _saved(path: Path) -> list[Row]:
    datasets = require("datasets", f"the dataset in {path}", DataError)
    try:
        rows = datasets.load_from_disk(str(path))
        return [_row(each, f"{path}, row {at}") for at, each in enumerate(rows)]
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as a dataset: {describe(error)}") from error
