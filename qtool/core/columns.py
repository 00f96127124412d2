"""Which columns of a table are which inputs of a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from qtool.core.errors import DataError
from qtool.core.leaf_names import LABELS
from qtool.core.log import log_note
from qtool.core.remedies import DataEdit
from qtool.core.types import Array

Columns = Mapping[str, Array]
"""Name of a column -> its values, [samples] or [samples, ...]; texts have the dtype object."""


@dataclass(frozen=True)
class InputNames:
    """What a model takes, by name.

    Attributes:
        required: names of inputs without a default.
        names: names of all inputs; None: any, or unknown. The inputs of an ONNX file have two
            names, the file's and a Python identifier.
    """

    required: frozenset[str] = frozenset()
    names: frozenset[str] | None = None


class EmptyCellError(DataError):
    """A column of numbers lacks one.

    Attributes:
        name: name of the column.
        row: position of the sample.
    """

    def __init__(self, name: str, row: int) -> None:
        super().__init__(
            f"row {row + 1} of the data: the column '{name}' holds no value, the others numbers",
            DataEdit("repair or remove that row"),
        )
        self.name, self.row = name, row


def table_arrays(
    columns: Columns, inputs: InputNames, chosen: Sequence[str] = ()
) -> dict[str, Array]:
    """Return the inputs of a model from the columns of a table.

    A column is an input where a model takes several, or takes one of its name and it is the only
    column or has lists. Where one of several inputs has no column of its name, the columns that are
    none of the others together are this input. Of a model with one input all columns together are
    it, float32 [samples, columns] in their order.

    Args:
        columns: the table, without its labels.
        inputs: what the model takes.
        chosen: columns that the user chose; by default all but the usual ones of labels, and but
            one without a name (the index that pandas writes).

    Raises:
        DataError: a column holds no numbers, or there is none of an input.
    """
    dropped = [] if chosen else left_out(columns, inputs)
    if dropped and len(dropped) < len(columns):
        _note_unused(name or "without a name" for name in dropped)
        columns = {name: a for name, a in columns.items() if name not in dropped}
    required, known = inputs.required, inputs.names
    if len(required) > 1:
        return _several_inputs(columns, required, known)
    only = next(iter(required), None)
    if only in columns and known is not None and columns.keys() <= known:
        return {name: column_numbers(name, a) for name, a in columns.items()}
    arrays = {name: column_numbers(name, a) for name, a in columns.items()}
    wide = next((name for name, a in arrays.items() if a.ndim > 1), None)
    if wide is None:
        return {"": _together(arrays)}
    if len(arrays) == 1:
        return {"": arrays[wide]}
    if only is None:
        return arrays  # a model that is not known has inputs of these names
    if only in arrays and arrays[only].ndim > 1:
        _note_unused(name for name in arrays if name != only)
        return {only: arrays[only]}
    raise DataError(
        f"the column '{wide}' holds lists, and there are others ({', '.join(arrays)})",
        DataEdit("choose the columns of one input"),
    )


def _several_inputs(
    columns: Columns, required: frozenset[str], known: frozenset[str] | None
) -> dict[str, Array]:
    """Return the inputs of a model that needs several."""
    inputs = required if known is None else known
    named = {name: column_numbers(name, a) for name, a in columns.items() if name in inputs}
    others = [name for name in columns if name not in inputs]
    missing = sorted(required - named.keys())
    if not missing:
        _note_unused(others)
        return named
    one = len(missing) == 1 < len(others) and not get_close_matches(missing[0], others, 1)
    together = {name: column_numbers(name, columns[name]) for name in others if one}
    if not one or any(array.ndim > 1 for array in together.values()):
        raise DataError(
            f"the model takes {', '.join(sorted(required))}, the table has the columns "
            f"{', '.join(columns)}: none is '{missing[0]}'",
            DataEdit("name the columns as the inputs"),
            DataEdit("give an array per input, in a dict or an .npz file"),
        )
    log_note(f"the columns {', '.join(others)} are the input '{missing[0]}'")
    return {**named, missing[0]: _together(together)}


def _together(arrays: Columns) -> Array:
    return np.stack([a.astype(np.float32) for a in arrays.values()], 1)


def _note_unused(names: Iterable[str]) -> None:
    if listed := ", ".join(names):
        log_note(f"the column '{listed}' is left out: it is no input")


def left_out(columns: Collection[str], inputs: InputNames) -> list[str]:
    """Return the columns that are no input by their usual names; x, y and others are coordinates.

    Args:
        columns: names of the columns.
        inputs: what the model takes.
    """
    coordinates = {"y"} if "x" in columns and len(columns) > 2 else set()
    labels = LABELS - inputs.required - coordinates
    return [name for name in columns if name in labels or not name]


_INDEX_BYTES = 4  # of the smallest indices of torch; codes of a categorical of pandas are int8


def column_numbers(name: str, column: Array) -> Array:
    """Return a column as numbers: float32, int64 in place of shorter ones, or as it is; lists of
    equal lengths become further dimensions.

    Raises:
        DataError: it holds something else, or NaN.
    """
    try:
        values = np.array(column.tolist()) if column.dtype == object else np.asarray(column)
    except ValueError:  # lists of different lengths
        values = column
    if values.dtype.kind not in "biuf":
        cells = column.tolist()
        at = next((i for i, v in enumerate(cells) if not isinstance(v, int | float)), 0)
        if cells[at] is None:
            raise EmptyCellError(name, at)
        raise DataError(
            f"the column '{name}' holds {cells[at]!r:.40} (row {at + 1}), no number",
            DataEdit("give it as numbers, as the model was trained, or leave it out"),
        )
    if values.dtype.kind != "f":
        small = values.dtype.kind in "iu" and values.itemsize < _INDEX_BYTES
        return values.astype(np.int64) if small else values
    if (empty := np.isnan(values.reshape(len(values), -1)).any(1)).any():
        raise EmptyCellError(name, int(empty.argmax()))
    return values.astype(np.float32)
