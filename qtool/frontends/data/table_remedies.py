"""What to do where a model does not take the columns of a table, which are its only input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from qtool.core.data.array_batches import is_frame
from qtool.core.errors import CaptureError, DataError, QtoolError
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
        if not (remedies := _remedies(data, model, batch, error)):
            raise
        raise type(error)(error.problem, *remedies, *error.remedies) from error


def _remedies(data: Any, model: Any, batch: Any, error: QtoolError) -> list[Remedy]:
    names = tuple(map(str, data.columns)) if is_frame(data) else getattr(data, "columns", ())
    tensors = [t for _, t in batch.tensors()]
    if len(tensors) != 1 or tensors[0].shape[1:] != (len(names),):
        return []
    if isinstance(error, DataError) and _runs(model, torch.zeros_like(tensors[0])):
        return []  # the number of columns is right
    every = ", ".join(names)
    fewer = _fewer(names, getattr(data, "labels", None) is not None)
    fewer = fewer if _runs(model, tensors[0][:, [names.index(name) for name in fewer]]) else ()
    if is_frame(data):
        chosen = f"frame[{list(fewer)}]" if fewer else "frame[[...]]"
        return [DataEdit(f"choose the columns of the input ({chosen}); they are {every}")]
    text = f"the input is the columns {every}: choose those that the model takes with {{}}"
    return [Argument("--column", ",".join(fewer) or None, text)]


def _fewer(names: tuple[str, ...], labelled: bool) -> tuple[str, ...]:
    """Return the columns without that of row numbers, and without the last, which is mostly the
    number to predict, if the labels have no column of their own."""
    kept = [name for name in names if name.lower() not in _ROW_NUMBERS]
    return tuple(kept if labelled else kept[:-1])


_ROW_NUMBERS = ("", "id", "index", "unnamed: 0")


def _runs(model: Any, tensor: torch.Tensor) -> bool:
    """Return whether a model takes a tensor; its code may raise anything."""
    try:
        with torch.no_grad():
            model(tensor)
    except Exception:  # noqa: BLE001
        return False
    return callable(model)
