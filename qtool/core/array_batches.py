"""Batches of whole arrays: one array of all samples, arrays by name, columns of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from qtool.core.columns import Columns, InputNames, column_numbers, table_arrays
from qtool.core.errors import DataError
from qtool.core.remedies import DataEdit
from qtool.core.types import Array

BATCH_SIZE = 32


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
            cut = {name: self.convert(array[rows]) for name, array in self.arrays.items()}
            yield cut.get("", cut)

    @staticmethod
    def convert(rows: Any) -> Any:
        """Return the rows of an array in a batch as they are handed out."""
        return rows


@dataclass(frozen=True, eq=False)
class Table:
    """All samples as columns, whose model is not known yet: it says which columns are inputs.

    Attributes:
        columns: name -> values.
    """

    columns: Columns

    @property
    def sample_count(self) -> int:
        """Number of samples in all batches."""
        return len(next(iter(self.columns.values()), ()))

    def __len__(self) -> int:
        """Number of batches."""
        return len(range(0, self.sample_count, BATCH_SIZE))

    def __iter__(self) -> Iterator[Any]:
        return self.every(0, 1)

    def every(self, first: int, step: int) -> Iterator[Any]:
        """Yield every `step`-th batch of all columns from the `first` on."""
        return self.batches(InputNames()).every(first, step)

    def batches(self, inputs: InputNames) -> ArrayBatches:
        """Return the inputs of a model.

        Raises:
            DataError: a column holds no numbers, or there is none of an input.
        """
        return ArrayBatches(table_arrays(self.columns, inputs))


def whole_arrays(data: Any, inputs: InputNames | None = None) -> Any:
    """Return batches of data that is one tensor or array, rows of numbers, a dict of arrays, or a
    DataFrame or Series of pandas or polars; other data as it is.

    Args:
        data: the data.
        inputs: what the model takes; None: not known yet, so that a DataFrame becomes a `Table`.

    Raises:
        DataError: an array has no samples or another number of them, or a column no numbers.
    """
    if is_frame(data) or is_series(data):
        data = Table(_columns_of(data))
    if isinstance(data, Table):
        return data if inputs is None else data.batches(inputs)
    if is_array(data):
        arrays: dict[str, Any] = {"": data}
    elif isinstance(data, Mapping):
        arrays = {str(name): _values(array) for name, array in data.items()}
    elif isinstance(data, list | tuple) and data and all(map(_is_row, data)):
        arrays = {"": _stacked(data)}
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


def whole_texts(data: Iterable[Any]) -> Iterable[Any]:
    """Return the same samples in the form that accuracy is measured on.

    Calibration data of a decoder has the first tokens of each text in the KV cache, so that their
    losses are not known; data that can also give whole texts and an empty cache has a method
    `whole_texts`. Whole arrays become batches, a table a `Table`; other data is as it is.
    """
    whole: Iterable[Any] = (
        data.whole_texts() if hasattr(data, "whole_texts") else whole_arrays(data)
    )
    return whole


def is_array(value: Any) -> bool:
    """Return whether a value is an array, of numpy or another library, or a tensor."""
    return (
        hasattr(value, "__array__") and hasattr(value, "ndim") and not isinstance(value, np.generic)
    )


def is_frame(data: Any) -> bool:
    """Return whether data is a DataFrame, of pandas or another library with its interface."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def is_series(data: Any) -> bool:
    """Return whether data is a column of a DataFrame."""
    return hasattr(data, "to_numpy") and hasattr(data, "name")


def _columns_of(data: Any) -> Columns:
    """Return the columns of a DataFrame, or a Series as the only one.

    Raises:
        DataError: two columns have one name.
    """
    if is_series(data):
        return {str(data.name or "values"): np.asarray(data)}
    names = [str(name) for name in data.columns]
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
        raise DataError(f"the data has two columns called '{twice}'", DataEdit("rename one"))
    return {name: np.asarray(data[key]) for name, key in zip(names, data.columns, strict=True)}


def _values(array: Any) -> Any:
    """Return one of several inputs as an array, if it is a Series or rows of numbers."""
    if is_series(array):
        return column_numbers(str(array.name), np.asarray(array))
    rows = isinstance(array, list | tuple) and array and all(map(_is_row, array))
    return _stacked(array) if rows else array


def _is_row(item: Any) -> bool:
    """Return whether an item is a row of numbers, rather than a batch of tensors."""
    numbers = isinstance(item, list | tuple) and all(isinstance(v, Real) for v in item)
    return numbers and len(item) > 0


def _stacked(rows: Sequence[Any]) -> Array:
    """Return rows of numbers as an array; floating point numbers as float32.

    Raises:
        DataError: they have different lengths.
    """
    if odd := next((i for i, row in enumerate(rows) if len(row) != len(rows[0])), None):
        raise DataError(
            f"row {odd + 1} of the data has {len(rows[odd])} numbers, the first one {len(rows[0])}",
            DataEdit("give rows of one length"),
        )
    array = np.array(rows)
    return array.astype(np.float32) if array.dtype.kind == "f" else array
