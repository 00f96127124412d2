"""What to do where a model does not take the columns of a table, which are its only input."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from qtool.core.array_batches import is_frame, values_in
from qtool.core.columns import InputNames, left_out
from qtool.core.errors import CaptureError, DataError
from qtool.core.remedies import Argument, DataEdit, Remedy


@contextmanager
def columns_in_errors(data: Any, model: Any, batch: Any) -> Iterator[None]:
    """Add to errors of a batch which columns of a table to choose.

    Args:
        data: the data; other data than a table changes nothing.
        model: called with a tensor in place of the batch, and raises if it does not take it.
        batch: the batch.

    Raises:
        CaptureError, DataError: the error inside.
    """
    try:
        yield
    except (CaptureError, DataError) as error:
        if not (remedies := _remedies(data, model, batch)):
            raise
        raise type(error)(error.problem, *remedies, *error.remedies) from error


def _remedies(data: Any, model: Any, batch: Any) -> list[Remedy]:
    names = tuple(map(str, data.columns)) if is_frame(data) else getattr(data, "columns", ())
    tensors = values_in(batch)
    if len(tensors) != 1 or tensors[0].ndim != 2:
        return []
    unused = left_out(names, InputNames())
    if tensors[0].shape[1] == len(names) - len(unused) and _runs(model, _zeros(tensors[0], names)):
        return [_all_columns(data, names, unused)] if unused else []
    if tensors[0].shape[1] != len(names):
        return []
    widths = _widths(model, tensors[0])
    if not widths or _runs(model, _zeros(tensors[0], names)):
        return []  # it is not the number of columns
    every = ", ".join(names)
    fewer = _fewer(names, getattr(data, "labels", None) is not None)
    fewer = fewer if _runs(model, tensors[0][:, [names.index(name) for name in fewer]]) else ()
    if is_frame(data):
        chosen = f"frame[{list(fewer)}]" if fewer else "frame[[...]]"
        return [DataEdit(f"choose the columns of the input ({chosen}); they are {every}")]
    count = f"the {widths[0]}" if len(widths) == 1 else "those"
    text = f"the input is the columns {every}: choose {count} that the model takes with {{}}"
    return [Argument("--column", ",".join(fewer) or None, text)]


def _zeros(tensor: Any, names: Sequence[str]) -> Any:
    return _zeros_like(tensor, len(names))


def _zeros_like(tensor: Any, width: int) -> Any:
    zeros = np.zeros((len(tensor), width), np.float32)
    return zeros if isinstance(tensor, np.ndarray) else tensor.new_tensor(zeros)


def _all_columns(data: Any, names: Sequence[str], unused: Sequence[str]) -> Remedy:
    """Return how to use columns that are left out by their names."""
    out = f"the column '{', '.join(unused)}' is left out by its name, and the model takes it: give "
    if is_frame(data):
        return DataEdit(f"{out}the numbers alone (frame.to_numpy('float32'))")
    return Argument("--column", ",".join(names), f"{out}{{}}")


def _fewer(names: tuple[str, ...], labelled: bool) -> tuple[str, ...]:
    """Return the columns without that of row numbers, and without the last, which is mostly the
    number to predict, if the labels have no column of their own."""
    kept = [name for name in names if name.lower() not in _ROW_NUMBERS]
    return tuple(kept if labelled else kept[:-1])


def _widths(model: Any, tensor: Any) -> list[int]:
    """Return the numbers of columns that a model takes; some of them if it takes any number."""
    widths = range(1, max(2 * tensor.shape[1], _LEAST) + 1)
    runs = (w for w in widths if _runs(model, _zeros_like(tensor, w)))
    return list(itertools.islice(runs, 2))


_LEAST = 64  # columns that are tried
_ROW_NUMBERS = ("", "id", "index", "unnamed: 0")


def _runs(model: Any, tensor: Any) -> bool:
    """Return whether a model takes a tensor; its code may raise anything."""
    try:
        model(tensor)
    except Exception:  # noqa: BLE001
        return False
    return callable(model)
