"""Reads rows of data: folders of images or sounds, texts, saved datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qtool.core.errors import DataError, errors_as, missing
from qtool.core.file_forms import IMAGES, SOUNDS
from qtool.core.log import log_note, unlogged
from qtool.core.paths import is_dir, is_file
from qtool.core.remedies import Argument, DataEdit, OtherFile
from qtool.frontends.data.separated_values import read_lines
from qtool.frontends.data.tables import LINES, TABLES, read_objects, read_table
from qtool.frontends.optional_packages import require

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
_CHATS = ("messages", "conversations", "conversation")
_ROLES = {"human": "user", "gpt": "assistant"}
"""Names of roles in conversations with `from` and `value`."""
_CLASSES = int | str | np.integer
_TARGETS = _CLASSES | float | np.number
_NUMBERS = (int, float, np.number)


@dataclass(frozen=True)
class Row:
    """One sample.

    Attributes:
        image: path or decoded image.
        sound: path or decoded sound.
        text: the text, or the first one of two.
        pair: the second text.
        target: text that a decoder has to produce.
        label: class number or name, or the number to predict.
        messages: messages of a conversation, each with a role and a content; the text has their
            contents, too.
        position: its place among the samples of the data.
    """

    image: Any = None
    sound: Any = None
    text: str | None = None
    pair: str | None = None
    target: str | None = None
    label: int | float | str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    position: int = field(default=0, compare=False)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which of image, sound and text the row has."""
        return tuple(k for k in ("image", "sound", "text") if getattr(self, k) is not None)

    def __str__(self) -> str:
        return str(next((v for v in (self.image, self.sound) if v is not None), self.text))


def read_rows(path: Path, columns: Sequence[str] = (), label: str | None = None) -> list[Row]:
    """Return the samples of a folder by file name, or of a file in its order.

    A folder has images or sounds, optionally in a subfolder per class, with texts and labels in
    metadata.jsonl; or `Dataset.save_to_disk` wrote it. A .txt file has one text per line, a .jsonl
    file one object per line; other tables are those of `read_table`.

    Args:
        path: the folder or file.
        columns: names of the columns of the text, of two texts, of an image or of a conversation;
            by default usual names.
        label: name of the column of labels; by default a usual name.

    Raises:
        DataError: there are no samples, or they are of different kinds.
    """
    if is_dir(path):
        saved = (path / "state.json").is_file()
        rows = _saved(path, columns, label) if saved else _folder(path, columns, label)
    elif not is_file(path):
        raise missing(path, DataError, "file or folder")
    elif path.suffix == ".txt":
        lines = read_lines(path)
        rows = [Row(text=line) for line in lines if line.strip()]
    elif path.suffix == LINES:
        rows = [
            _row(each, f"{path}, line {at + 1}", columns, label) for at, each in read_objects(path)
        ]
    elif path.suffix in TABLES:
        rows = _table(path, columns, label)
    else:
        known = ", ".join((".npy", ".npz", ".txt", *TABLES))
        raise DataError(f"{path}: data is a folder, a file of {known}, or package.module:function")
    if not rows:
        raise DataError(f"{path} has no samples")
    odd = next((r for r in rows if r.kinds != rows[0].kinds or not r.kinds), None)
    if odd is not None:
        raise DataError(
            f"{path}: a sample has {' and '.join(odd.kinds) or 'nothing'} ({odd}), the first "
            f"one has {' and '.join(rows[0].kinds) or 'nothing'}",
            DataEdit("give samples of one kind"),
        )
    return rows


def _folder(path: Path, columns: Sequence[str], label: str | None) -> list[Row]:
    if (path / METADATA).is_file():
        return [
            _row(
                {**each, "file_name": path / str(each.get("file_name", ""))},
                str(path),
                columns,
                label,
            )
            for _, each in read_objects(path / METADATA)
        ]
    rows = []
    for file in sorted(p for p in path.rglob("*") if p.suffix.lower() in (*IMAGES, *SOUNDS)):
        inside = file.relative_to(path).parts[:-1]
        folder = inside[0] if inside else None
        image = file if file.suffix.lower() in IMAGES else None
        rows.append(Row(image, None if image is not None else file, label=folder))
    if not rows:
        known = ", ".join((".npy", ".npz", *IMAGES, *SOUNDS))
        raise DataError(f"{path} has no data; supported files are {known}")
    if len({r.label is None for r in rows}) > 1:
        loose = next(r for r in rows if r.label is None)
        raise DataError(
            f"{path} has class folders and a file outside of them, {loose}",
            OtherFile("move it into one"),
        )
    return rows


def _row(
    columns: Mapping[str, Any],
    where: str,
    chosen: Sequence[str] = (),
    label: str | None = None,
) -> Row:
    """Return a row from an object with the usual column names of datasets, or the chosen ones."""
    for name in (*chosen, *([] if label is None else [label])):
        if name not in columns:
            raise DataError(f"{where} has no column '{name}'; its columns are {_listed(columns)}")
    names = (chosen[0], (*chosen, "")[1]) if chosen else None
    texts = next(((a, b) for a, b in _TEXT if isinstance(columns.get(a), str)), ("", ""))
    text, pair = names or texts
    known, types = (_LABEL, _CLASSES) if label is None else ((label,), _TARGETS)
    number = next((columns[k] for k in known if isinstance(columns.get(k), types)), None)
    image, sound = columns.get("image"), columns.get("audio")
    file = columns.get("file_name")
    if isinstance(file, Path):
        if not is_file(file):
            raise DataError(f"{where}: {METADATA} names {file.name}, which is not there")
        image, sound = (file, None) if file.suffix.lower() in IMAGES else (None, file)
    messages = _conversation(columns, chosen)
    content = "\n".join(str(m.get("content", "")) for m in messages) if messages else None
    row = Row(
        image,
        sound,
        columns[text] if isinstance(columns.get(text), str) else content,
        columns[pair] if isinstance(columns.get(pair), str) else None,
        columns.get("target") if isinstance(columns.get("target"), str) else None,
        number.item() if isinstance(number, np.generic) else number,
        messages,
    )
    if not row.kinds:
        raise _no_kind({k: v for k, v in columns.items() if k not in (*_LABEL, label)}, where)
    return row


def _no_kind(columns: Mapping[str, Any], where: str) -> DataError:
    """Return the error of a row without a column named as texts, images or sounds are."""
    usual = ", ".join([*dict.fromkeys(a for a, _ in _TEXT), *_CHATS, "image", "audio"])
    return DataError(
        f"{where} has no text, image or sound in a column of a usual name ({usual}), and its "
        f"columns are not all numbers: {_listed(columns)}",
        Argument("--column", text="name the columns to use with {}"),
    )


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(map(str, columns))


def _conversation(
    columns: Mapping[str, Any], chosen: Sequence[str]
) -> tuple[Mapping[str, Any], ...]:
    """Return the messages of a conversation, each with a role and a content; () without one."""
    for name in chosen or _CHATS:
        messages = columns.get(name)
        messages = messages.tolist() if isinstance(messages, np.ndarray) else messages
        if isinstance(messages, list) and messages and all(isinstance(m, dict) for m in messages):
            return tuple(
                {"role": _ROLES.get(m["from"], m["from"]), "content": m.get("value")}
                if "from" in m
                else m
                for m in messages
            )
    return ()


def _table(path: Path, columns: Sequence[str], label: str | None) -> list[Row]:
    with unlogged():
        table = read_table(path)
    rows = []
    for at, cells in enumerate(zip(*table.values(), strict=True)):
        row = _row(dict(zip(table, cells, strict=True)), f"{path}, row {at + 1}", columns, label)
        inside = isinstance(row.image, str) and not is_file(row.image)
        rows.append(replace(row, image=path.parent / row.image) if inside else row)
    texts = [name for name, cells in table.items() if rows and cells[0] == rows[0].text is not None]
    if texts and len(table) > 1 and not columns:
        log_note(f"the texts are those of the column '{texts[0]}' of {path.name}")
    return rows


def _saved(path: Path, columns: Sequence[str], label: str | None) -> list[Row]:
    datasets = require("datasets", f"the dataset in {path}", DataError)
    with errors_as(DataError, f"{path} cannot be read as a dataset"):
        rows = datasets.load_from_disk(str(path))
        return [_row(each, f"{path}, row {at}", columns, label) for at, each in enumerate(rows)]
