"""Columns of a DataFrame by name: those of the calibration data in its order, and the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qtool.core.array_batches import ArrayBatches, is_frame
from qtool.core.columns import InputNames, left_out
from qtool.core.errors import DataError
from qtool.core.log import log_note
from qtool.core.remedies import DataEdit


def input_columns(data: Any) -> tuple[str, ...]:
    """Return the names of the columns of a table that are inputs, in order; () of other data."""
    if is_frame(data):
        names = [str(name) for name in data.columns]
    elif isinstance(data, ArrayBatches) and "" in data.arrays:
        names = list(data.columns)
        if len(names) == data.arrays[""].shape[1]:  # the user chose them all
            return tuple(names)
    else:
        return ()
    unused = left_out(names, InputNames())
    return tuple(name for name in names if name not in unused)


def in_column_order(data: Any, columns: Sequence[str]) -> Any:
    """Return data with the columns that a model was calibrated on, in their order.

    Args:
        data: a DataFrame, or batches of a table; other data is returned as it is.
        columns: names of the columns of the calibration data; () is not known.

    Raises:
        DataError: some of the columns are in the data, others are not. Data without any of them,
            as of numbers for names, is taken in its own order.
    """
    own = input_columns(data)
    if tuple(columns) == own or not set(own).intersection(columns):
        return data
    if missing := [name for name in columns if name not in own]:
        raise DataError(
            f"the data lacks the column '{missing[0]}', which the model was calibrated on: it has "
            f"{', '.join(own)}",
            DataEdit("give the columns of the calibration data, by their names"),
        )
    log_note(f"columns are taken by name, as in the calibration data: {', '.join(columns)}")
    if is_frame(data):
        keys = {str(key): key for key in data.columns}
        return data[[keys[name] for name in columns]]
    rows = data.arrays[""][:, [own.index(name) for name in columns]]
    return replace(data, arrays={"": rows}, columns=tuple(columns))


def split_labels(data: Any, labels: ArrayLike | None) -> tuple[Any, ArrayLike | None]:
    """Return data and labels; where labels are the name of a column of a DataFrame, its values, and
    the other columns.

    Raises:
        DataError: there is no such column.
    """
    if not is_frame(data) or not isinstance(labels, str):
        return data, labels
    keys = {str(key): key for key in data.columns}
    if labels not in keys:
        raise DataError(
            f"the data has no column '{labels}' for the labels: it has {', '.join(keys)}",
            DataEdit("give the values"),
        )
    others = data[[key for name, key in keys.items() if name != labels]]
    return others, np.asarray(data[keys[labels]])
