"""Reads text files: lines, and the columns of comma-separated values."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from qtool.core.downloads import DOWNLOAD, check_download
from qtool.core.errors import DataError, describe, errors_as
from qtool.core.log import log_note
from qtool.core.remedies import DataEdit, OtherFile
from qtool.core.types import Array

_COMPARED = 20  # rows that show whether the first one has names


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file; DataError if it cannot be read."""
    check_download(path, DataError)
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        utf_8 = [OtherFile("save it as UTF-8")] if isinstance(error, UnicodeDecodeError) else []
        raise DataError(f"{path} cannot be read as text: {describe(error)}", *utf_8) from error


def read_separated(path: Path) -> dict[str, Array]:
    """Read comma-separated values; semicolons and tabs separate, too, where the first line has more
    of them.

    Columns without names are called "0", "1" and so on, with a note.

    Raises:
        DataError: the file cannot be read, or is no table.
    """
    lines = read_lines(path)
    if not lines:
        raise DataError(f"{path} has no samples")
    separator = max(",;\t", key=lines[0].count)
    with errors_as(DataError, f"{path} cannot be read as a table", of=csv.Error):
        rows = [row for row in csv.reader(lines, delimiter=separator) if row]
    header = [cell.strip() for cell in rows[0]]
    if _has_names(header, rows[1:_COMPARED]):
        rows = rows[1:]
    else:
        header = [str(i) for i in range(len(header))]
        log_note(
            f"the first line of {path} is a sample, not names of columns: they are called by "
            f"their positions, 0 to {len(header) - 1}"
        )
    odd = next((i for i, row in enumerate(rows) if len(row) != len(header)), None)
    if odd is not None:
        cut = odd == len(rows) - 1 and len(rows[odd]) < len(header)
        raise DataError(
            f"{path}, row {odd + 1} has {len(rows[odd])} cells, the table has {len(header)} columns"
            f"{'; it is the last row, so the file may be cut off' if cut else ''}",
            DOWNLOAD if cut else DataEdit("quote texts that hold separators"),
        )
    if len(set(header)) < len(header):
        twice = next(name for i, name in enumerate(header) if name in header[:i])
        raise DataError(f"{path} has two columns called '{twice}'", OtherFile("rename one"))
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    return {name: _cells(cells) for name, cells in zip(header, columns, strict=True)}


def _has_names(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Return whether a first row has names of columns, and not a sample.

    It has where a text is above numbers. Numbers are names where they count up, as positions and
    years do; a single whole one among texts may be a name, too.

    Args:
        first: cells of the first row.
        others: some of the rows below.
    """
    below = list(itertools.zip_longest(*others, fillvalue=""))[: len(first)]
    if not others or any(
        cell and not is_number(cell) and any(map(is_number, column))
        for cell, column in zip(first, below, strict=False)
    ):
        return not all(map(is_number, first))
    numbers = [float(cell) for cell in first if is_number(cell)]
    if not numbers:
        return True
    counts = [numbers[0] + i for i in range(len(numbers))]
    return numbers == counts and numbers[0].is_integer() and (len(first) > 1 or numbers == [0])


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cells(values: Sequence[str]) -> Array:
    """Return a column of a text file: whole numbers (of true and false, too), numbers, texts."""
    texts = np.array([v.strip() for v in values])
    with suppress(ValueError, OverflowError):
        return texts.astype(np.int64)
    with suppress(ValueError, OverflowError):
        return texts.astype(np.float64)
    if {*np.char.lower(texts)} <= {"true", "false"}:
        return np.array([text.lower() == "true" for text in texts]).astype(np.int64)
    column = np.empty(len(values), object)
    column[:] = values
    return column
