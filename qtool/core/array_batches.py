"""Batches of whole arrays: one array of all samples, arrays by name, columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from qtool.core.columns import Columns, InputNames, column_numbers, table_arrays
from qtool.core.errors import DataError, QtoolError, describe
from qtool.core.leaf_names import values_of
from qtool.core.log import log_note
from qtool.core.progress import no_progress
from qtool.core.remedies import CallEdit, DataEdit
from qtool.core.types import Array, Progress
from qtool.core.user_code import user_place

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
        return self.as_arrays(first, step)

    def as_arrays(self, first: int = 0, step: int = 1) -> Iterator[Any]:
        """Yield the same batches of arrays, whatever `every` hands out."""
        for at in range(first, len(self), step):
            rows = slice(at * self.batch_size, (at + 1) * self.batch_size)
            cut = {name: array[rows] for name, array in self.arrays.items()}
            yield cut.get("", cut)


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


class Items(Iterator[Any]):
    """The items of the user's data; an error while it is read has the number of the item."""

    def __init__(self, data: Any, progress: Progress = no_progress) -> None:
        """
        Args:
            data: the data.
            progress: wraps it.

        Raises:
            DataError: it is not iterable, or has single samples instead of batches.
        """
        kind = type(data).__name__
        if isinstance(data, str | bytes | Path):
            raise DataError(
                f"data is the name {str(data)!r}", DataEdit(f"give qtool.load_data({str(data)!r})")
            )
        if "Dataset" in _classes_of(data, "torch.utils.data") and not hasattr(data, "__iter__"):
            raise DataError(
                f"data is a {kind}, a dataset of single samples",
                DataEdit(
                    "give DataLoader(data, batch_size=32), or batch_size=None if its items are "
                    "batches"
                ),
            )
        self._index = 0
        try:
            self._iterator = iter(progress(data))
        except TypeError as error:
            call = [CallEdit("call it, and give its result")] if callable(data) else []
            raise DataError(f"data of type {kind} cannot be iterated over", *call) from error
        except QtoolError:
            raise
        except (Exception, SystemExit) as error:
            why = f"{describe(error)}{user_place(error)}"
            raise DataError(f"the data cannot be read: {why}") from error

    def __next__(self) -> Any:
        """Return the next item.

        Raises:
            DataError: the user's code raises something else than an error of qtool.
        """
        try:
            item = next(self._iterator)
        except (StopIteration, QtoolError):
            raise
        except (Exception, SystemExit) as error:
            why = f"{describe(error)}{user_place(error)}"
            images = "PIL." in why and "collate" in why  # the DataLoader's own message
            edits = [DataEdit("give the dataset a transform that returns tensors")] * images
            raise DataError(f"reading batch {self._index} failed: {why}", *edits) from error
        self._index += 1
        return item


def _classes_of(value: Any, package: str) -> set[str]:
    """Return the names of the classes of a value that are in a package."""
    return {c.__name__ for c in type(value).__mro__ if c.__module__.startswith(package)}


def is_array(value: Any) -> bool:
    """Return whether a value is an array, of numpy or another library, or a tensor."""
    return (
        hasattr(value, "__array__") and hasattr(value, "ndim") and not isinstance(value, np.generic)
    )


def no_batch(item: Any) -> DataError:
    """Return the error of an item of the user's data that is no batch."""
    return DataError(
        f"a batch is a {type(item).__name__}",
        DataEdit(
            "give tensors, tuples of tensors or dicts of tensors (images through a "
            "transform, texts through a tokenizer)"
        ),
    )


def values_in(batch: Any) -> list[Any]:
    """Return the arrays and tensors of a batch, in order."""
    tree = [batch.args, batch.kwargs] if hasattr(batch, "kwargs") else batch
    return [value for value in values_of(tree) if is_array(value)]


def samples_in(batch: Any) -> int:
    """Return the number of samples of a batch: the length of its first array that has one."""
    return next((len(a) for a in values_in(batch) if a.ndim), 1)


def is_frame(data: Any) -> bool:
    """Return whether data is a DataFrame, of pandas or another library with its interface."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def is_series(data: Any) -> bool:
    """Return whether data is a column of a DataFrame."""
    return hasattr(data, "to_numpy") and hasattr(data, "name") and not hasattr(data, "columns")


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


T = TypeVar("T")


def in_batches_of(
    size: int,
    batches: Iterable[T],
    parts_of: Callable[[T], Sequence[Any]],
    with_parts: Callable[[T, Sequence[Any]], T],
    join: Callable[[list[Any]], Any],
) -> Iterator[T]:
    """Yield the same samples in batches of a size.

    Batches whose arrays do not have a row per sample stay as they are. Samples at the end that do
    not fill a batch are left out, with a note; all of them stay if they do not fill a single one.

    Args:
        size: number of samples.
        batches: the batches.
        parts_of: returns the arrays or tensors of a batch.
        with_parts: returns a batch with others.
        join: concatenates arrays or tensors.

    Raises:
        DataError: samples that are to be in one batch have different sizes, as texts have.
    """
    left: T | None = None
    filled = False
    for batch in batches:
        parts = parts_of(batch)
        count = next((len(part) for part in parts if part.ndim), 1)
        if count == size or any(not part.ndim or len(part) != count for part in parts):
            filled = True
            yield batch
            continue
        if left is not None:
            pairs = list(zip(parts_of(left), parts, strict=True))
            _check_one_size(pairs, size)
            parts = [join([*pair]) for pair in pairs]
        total = len(parts[0])
        whole = total - total % size
        for start in range(0, whole, size):
            filled = True
            yield with_parts(batch, [part[start : start + size] for part in parts])
        left = with_parts(batch, [part[whole:] for part in parts]) if whole < total else None
    if left is not None and not filled:
        yield left  # the model says what it takes
    elif left is not None:
        count = len(parts_of(left)[0])
        log_note(f"the last {count} samples do not fill a batch of {size} and are left out")


def _check_one_size(pairs: Iterable[tuple[Any, Any]], samples: int) -> None:
    for one, other in pairs:
        if one.shape[1:] != other.shape[1:]:
            raise DataError(
                f"the model takes {samples} samples at once, and the data has samples of the "
                f"sizes {list(one.shape[1:])} and {list(other.shape[1:])}",
                DataEdit("pad them to one size"),
            )
