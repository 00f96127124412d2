"""Reads tables: .csv, .tsv, .parquet and .json files as columns, or as a row per sample."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from qtool.core.columns import Columns, EmptyCellError, left_out, table_arrays
from qtool.core.data.arguments import Arguments
from qtool.core.data.array_files import TensorBatches
from qtool.core.downloads import DOWNLOAD, check_download
from qtool.core.errors import DataError, describe, errors_as
from qtool.core.leaf_names import LABELS
from qtool.core.log import unlogged
from qtool.core.numpy_files import even_positions
from qtool.core.paths import is_file
from qtool.core.remedies import DataEdit, OtherFile
from qtool.core.types import Array
from qtool.frontends.data.separated_values import is_number, read_lines, read_separated
from qtool.frontends.optional_packages import require

TABLES = (".csv", ".tsv", ".parquet", ".json", ".jsonl")
LINES = ".jsonl"


def read_table(path: Path) -> dict[str, Array]:
    """Return the columns of a file by name, each [samples]; texts and lists have the dtype object.

    Raises:
        DataError: it cannot be read, or is no table.
    """
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix in (".json", LINES):
        rows = [row for _, row in read_objects(path)]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: _column([row.get(name) for row in rows]) for name in names}
    return read_separated(path)


def read_objects(path: Path) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Yield the objects of a .json or .jsonl file, with their positions: of lines from 0.

    Raises:
        DataError: a line is no object, or the file is no list of objects.
    """
    if path.suffix == ".json":
        whole = _whole_json(path)
        if whole is not None:
            yield from enumerate(whole)
            return
    lines = read_lines(path)
    for at, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            last = (DOWNLOAD,) if at > 0 and at == len(lines) - 1 else ()
            why = f"{path}, line {at + 1} is not JSON: {describe(error)}"
            raise DataError(f"{why}; the file may be cut off" if last else why, *last) from error
        if not isinstance(value, dict):
            raise DataError(f"{path}, line {at + 1} holds a {type(value).__name__}, not an object")
        yield at, value


def _whole_json(path: Path) -> list[Mapping[str, Any]] | None:
    """Return the objects of a file that is one JSON value: a list of them, or columns, as pandas
    writes them; None for a file with an object per line."""
    text = "\n".join(read_lines(path))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if "Extra data" in str(error):
            return None
        why = f"{path} is not JSON: {describe(error)}"
        if text.lstrip()[:1] in "[{" and text.rstrip()[-1:] not in "]}":
            raise DataError(f"{why}; the file is cut off", DOWNLOAD) from error
        raise DataError(why) from error
    if isinstance(value, dict) and len(value) == 1:  # {"data": [...]}
        only = next(iter(value.values()))
        value = only if isinstance(only, list) and only and isinstance(only[0], dict) else value
    if isinstance(value, dict):
        columns = [list(c.values()) if isinstance(c, dict) else c for c in value.values()]
        if all(isinstance(c, list) for c in columns) and len({len(c) for c in columns}) == 1:
            return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(value, list) and all(isinstance(row, dict) for row in value):
        return value
    raise DataError(
        f"{path} is no table",
        OtherFile(
            "write a list of objects, [{...}, {...}], an object per line, or columns of "
            "equal lengths"
        ),
    )


def _column(values: Sequence[Any]) -> Array:
    if all(isinstance(v, int | float) for v in values):
        return np.array(values)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _parquet(path: Path) -> dict[str, Array]:
    check_download(path, DataError)
    with errors_as(DataError, f"{path} cannot be read as a table", DOWNLOAD):
        if find_spec("pyarrow") is None and find_spec("pandas") is not None:
            frame = require("pandas", f"the table in {path}", DataError).read_parquet(path)
            return {str(name): np.asarray(frame[name]) for name in frame.columns}
        library = require("pyarrow.parquet", f"the table in {path}", DataError)
        table: Any = library.read_table(path)
        pairs = zip(table.column_names, table.columns, strict=True)
        return {name: column.to_numpy() for name, column in pairs}


def choose_columns(
    table: Columns, path: Path, chosen: Sequence[str], label: str | None
) -> tuple[Columns, Array | None]:
    """Return the columns of inputs, and that of the labels.

    Args:
        table: all columns.
        path: path of the table, for errors.
        chosen: names that the user chose; () for all but the label.
        label: name of the column of labels, or names of several, separated by commas: numbers to
            predict; None without.

    Raises:
        DataError: there is no such column, or there are no samples.
    """
    targets = [] if label is None else [label] if label in table else label.split(",")
    for name in (*chosen, *targets):
        if name not in table:
            raise DataError(f"{path} has no column '{name}'; its columns are {', '.join(table)}")
    if not table or not len(next(iter(table.values()))):
        raise DataError(f"{path} has no samples")
    inputs = {name: table[name] for name in chosen or table if chosen or name not in targets}
    if len(targets) > 1:
        return inputs, np.stack([table[name] for name in targets], 1)
    return inputs, table[targets[0]] if targets else None


def number_columns(
    path: Path, chosen: Sequence[str], label: str | None, arguments: Arguments
) -> tuple[Columns, Array | None] | None:
    """Return the columns of inputs and of labels of a table of numbers; None of other data.

    Args:
        path: the data.
        chosen, label: see `choose_columns`; without both the only column with a usual name of
            labels has them.
        arguments: what the model takes.

    Raises:
        DataError: as for `read_table` and `choose_columns`.
    """
    if path.suffix not in TABLES or not is_file(path):
        return None
    table = read_table(path)
    columns, target = choose_columns(table, path, chosen, label)
    if label is None and not chosen:
        usual = [name for name in left_out(table, arguments) if name]
        target = table[usual[0]] if len(usual) == 1 < len(table) else None
    for name, column in columns.items():
        if name not in LABELS and (odd := _odd_cell(column)) is not None:
            raise _odd_row(path, odd, name, column[odd])
    return (columns, target) if _hold_numbers(columns) else None


def _odd_cell(column: Array) -> int | None:
    """Return the position of the first cell without a number in a column of numbers; None if it has
    none, or if most of its cells are no numbers."""
    if column.dtype != object:
        return None
    odd = np.array([v is None or (isinstance(v, str) and not is_number(v)) for v in column])
    return int(odd.argmax()) if odd.any() and 2 * odd.sum() < len(odd) else None


def _odd_row(path: Path, at: int, name: str, value: object) -> DataError:
    what = repr(value)[:40] if isinstance(value, str) and value else "no value"
    return DataError(
        f"{path}, row {at + 1}: the column '{name}' holds {what}, the others numbers",
        DataEdit("repair or remove that row"),
    )


def _hold_numbers(columns: Columns) -> bool:
    """Return whether columns are numbers, or lists of numbers: inputs of a model as they are.

    Those with the usual names of labels may be texts.
    """
    inputs = [c for name, c in columns.items() if name not in LABELS] or [*columns.values()]
    return all(isinstance(_first_number(c[0]), int | float | np.number) for c in inputs)


def _first_number(value: Any) -> Any:
    while isinstance(value, list | np.ndarray) and len(value):
        value = value[0]
    return value


def number_batches(
    path: Path,
    columns: Columns,
    labels: Array | None,
    arguments: Arguments,
    *,
    chosen: Sequence[str],
    batch_size: int,
    samples: int | None,
) -> TensorBatches:
    """Return the columns of numbers of a table as batches.

    Args:
        path: path of the table, for errors.
        columns: the inputs.
        labels: [samples]; None without.
        arguments: what the model takes.
        chosen: columns that the user chose.
        batch_size: samples per batch.
        samples: number of evenly spaced samples to use; None: all.

    Raises:
        DataError: a column does not hold numbers alone, or a cell of an input has no value.
    """
    at = even_positions(len(next(iter(columns.values()))), samples)
    try:
        arrays = table_arrays({name: c[at] for name, c in columns.items()}, arguments, chosen)
    except EmptyCellError as error:
        raise _odd_row(path, int(at[error.row]), error.name, np.nan) from error
    together = tuple(columns) if "" in arrays else ()
    return TensorBatches(arrays, batch_size, None if labels is None else labels[at], at, together)


def has_named_columns(path: Path) -> bool:
    """Return whether data is a table, a saved dataset, or a folder with metadata of its files."""
    if is_file(path):
        return path.suffix in TABLES
    return is_file(path / "state.json") or is_file(path / "metadata.jsonl")


def has_columns(labels: str, path: Path) -> bool:
    """Return whether labels are a column of data: it is a table, or a saved dataset, and they are
    no file.

    Raises:
        DataError: the table has no such column.
    """
    if is_file(labels) or not has_named_columns(path):
        return False
    if is_file(path):
        with unlogged():
            choose_columns(read_table(path), path, (), labels)
    return True
