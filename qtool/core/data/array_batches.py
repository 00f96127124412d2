"""Batches of whole arrays: one array of all samples, arrays by name, columns of a table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qtool.core.data.arguments import Arguments
from qtool.core.data.batch import to_tensor
from qtool.core.errors import DataError
from qtool.core.label_names import LABELS
from qtool.core.log import log_note
from qtool.core.remedies import DataEdit
from qtool.core.types import Array

BATCH_SIZE = 32

Columns = Mapping[str, Array]
"""Name of a column -> its values, [samples] or [samples, ...]; texts have the dtype object."""


@dataclass(frozen=True, eq=False)
class ArrayBatches:
    """All samples as arrays, cut into batches.

    Attributes:
        arrays: name of an input -> [samples, ...]; "" names the only one.
        batch_size: samples per batch.
        labels: [samples] labels or [samples, ...] targets; None without.
        positions: positions of the samples in a larger table, int64; None: all samples.
        columns: names of the columns of a table that are the only input; () of other data.
    """

    arrays: Mapping[str, Any]
    batch_size: int = BATCH_SIZE
    labels: Array | None = None
    positions: Array | None = None
    columns: tuple[str, ...] = ()

    @property
    def sample_count(self) -> int:
        """Number of samples in all batches."""
        return len(next(iter(self.arrays.values())))

    def __len__(self) -> int:
        """Number of batches."""
        return len(range(0, self.sample_count, self.batch_size))

    def __iter__(self) -> Iterator[Any]:
        return self.every(0, 1)

    def every(self, first: int, step: int) -> Iterator[Any]:
        """Yield every `step`-th batch from the `first` on."""
        for at in range(first, len(self), step):
            rows = slice(at * self.batch_size, (at + 1) * self.batch_size)
            cut = {name: to_tensor(array[rows]) for name, array in self.arrays.items()}
            yield cut.get("", cut)


def whole_arrays(data: Any, model: Any = None) -> Any:
    """Return batches of data that is one tensor or array, a dict of these, or a DataFrame of pandas
    or polars; other data as it is.

    Raises:
        DataError: an array has no samples or another number of them, or a column no numbers.
    """
    if isinstance(data, torch.Tensor | np.ndarray):
        arrays: dict[str, Any] = {"": data}
    elif is_frame(data):
        columns = {str(name): np.asarray(data[name]) for name in data.columns}
        return ArrayBatches(table_arrays(columns, Arguments.of(model)))
    elif isinstance(data, Mapping):
        arrays = {str(name): array for name, array in data.items()}
    else:
        return data
    lengths = {name: len(a) for name, a in arrays.items() if getattr(a, "ndim", 0)}
    odd = next((name for name in arrays if name not in lengths), None)
    if odd is not None or not arrays:
        what = f"'{odd}' in it" if odd else "it"
        raise DataError(
            f"data is a {type(data).__name__}, and {what} has no samples along a first dimension",
            DataEdit("give arrays of all samples, or a list of batches"),
        )
    if len(set(lengths.values())) > 1:
        raise DataError(f"the arrays of the data have different numbers of samples: {lengths}")
    return ArrayBatches(arrays)


def is_frame(data: Any) -> bool:
    """Return whether data is a DataFrame, of pandas or another library with its interface."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def table_arrays(
    columns: Columns, arguments: Arguments, chosen: Sequence[str] = ()
) -> dict[str, Array]:
    """Return the inputs of a model from the columns of a table.

    A column is an input where a model takes inputs of the names of columns; else all columns
    together are the only input, float32 [samples, columns] in their order.

    Args:
        columns: the table, without its labels.
        arguments: what the model's forward takes.
        chosen: columns that the user chose; by default all but the usual ones of labels, and but
            one without a name (the index that pandas writes).

    Raises:
        DataError: a column holds no numbers, or there is none.
    """
    dropped = [] if chosen else left_out(columns, arguments)
    if dropped and len(dropped) < len(columns):
        names = ", ".join(name or "without a name" for name in dropped)
        log_note(f"the column '{names}' is left out: it is no input")
        columns = {name: a for name, a in columns.items() if name not in dropped}
    required, known = arguments.required, arguments.names
    named = bool(required) and required <= columns.keys()
    if named and (len(required) > 1 or (known is not None and columns.keys() <= known)):
        left = [] if known is None else [name for name in columns if name not in known]
        if left:
            log_note(f"the column '{', '.join(left)}' is left out: it is no input")
        return {name: _numbers(name, a) for name, a in columns.items() if name not in left}
    arrays = {name: _numbers(name, a) for name, a in columns.items()}
    wide = next((name for name, a in arrays.items() if a.ndim > 1), None)
    if wide is not None and len(arrays) > 1:
        raise DataError(
            f"the column '{wide}' holds lists, and there are others",
            DataEdit("choose the columns of one input"),
        )
    if wide is not None:
        return {"": arrays[wide]}
    return {"": np.stack([a.astype(np.float32) for a in arrays.values()], 1)}


def left_out(columns: Collection[str], arguments: Arguments) -> list[str]:
    """Return the columns that are no input by their usual names; x, y and others are coordinates.

    Args:
        columns: names of the columns.
        arguments: what the model's forward takes.
    """
    coordinates = {"y"} if "x" in columns and len(columns) > 2 else set()
    labels = LABELS - arguments.required - coordinates
    return [name for name in columns if name in labels or not name]


def _numbers(name: str, column: Array) -> Array:
    """Return a column as numbers; lists of equal lengths become further dimensions."""
    try:
        values = np.array(column.tolist()) if column.dtype == object else np.asarray(column)
    except ValueError:  # lists of different lengths
        values = column
    if values.dtype.kind not in "biuf":
        odd = next((v for v in column.tolist() if not isinstance(v, int | float)), None)
        raise DataError(
            f"the column '{name}' holds {odd!r:.40}, no number",
            DataEdit("give it as numbers, as the model was trained, or leave it out"),
        )
    return values.astype(np.float32) if values.dtype.kind == "f" else values
