"""The user's batches of arrays for a model file, in the order of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qtool.backends.session import FLOATS, PortInfo, Session
from qtool.core.errors import DataError
from qtool.core.remedies import DataEdit, Remedy
from qtool.core.shape_remedies import shape_remedies, type_remedies
from qtool.core.types import Array
from qtool.evaluation.model_inputs import DTYPES


def input_arrays(session: Session, data: Iterable[Any]) -> Iterator[list[Array]]:
    """Yield batches as arrays in the order of the inputs of a file.

    Args:
        session: the file.
        data: items of arrays: one array, a dict by input name, or a tuple in the order of the
            inputs; later entries of a tuple and other names of a dict are ignored.

    Raises:
        DataError: an input is missing, has another type or shape, or holds NaN or Inf.
    """
    for index, item in enumerate(data):
        values = named_arrays(item, [port.name for port in session.inputs])
        check_names(values, session.inputs, index)
        for port in session.inputs:
            _check_finite(f"input '{port.name}'", values[port.name], index)
        yield [fit_array(port, values[port.name], index) for port in session.inputs]


def named_arrays(item: Any, names: Sequence[str]) -> dict[str, Array]:
    """Return a batch by the names of the inputs; see `input_arrays`."""
    if isinstance(item, Mapping):
        values = {str(key): np.asarray(value) for key, value in item.items()}
        if len(names) == 1 == len(values) and names[0] not in values:
            return {names[0]: next(iter(values.values()))}
        return values
    items = item if isinstance(item, tuple | list) else (item,)
    return {name: np.asarray(value) for name, value in zip(names, items, strict=False)}


def check_names(
    values: Mapping[str, Any],
    inputs: Sequence[PortInfo],
    index: int,
    hint: Callable[[str], Sequence[Remedy]] = lambda _: (),
) -> None:
    """Check that a batch has each input.

    Args:
        values: the batch by names.
        inputs: inputs of the file that a batch has to have.
        index: number of the batch.
        hint: returns what to do about an input that is missing.

    Raises:
        DataError: one is missing.
    """
    names = [port.name for port in inputs]
    if missing := [name for name in names if name not in values]:
        raise DataError(
            f"batch {index} lacks input '{missing[0]}': it gives {', '.join(values) or 'nothing'}; "
            f"the model takes {', '.join(names)}",
            *hint(missing[0]),
        )


def fit_array(port: PortInfo, array: Array, index: int) -> Array:
    """Return an array in the floating point type of an input.

    Args:
        port: the input.
        array: its values in a batch.
        index: number of the batch.

    Raises:
        DataError: it has another type or shape.
    """
    where = f"batch {index}, input '{port.name}'"
    dtype = DTYPES.get(port.type, port.type)
    if port.type in FLOATS and array.dtype.kind == "f":
        array = array.astype(dtype, copy=False)  # as calibration does, with a note
    if str(array.dtype) != dtype:
        raise DataError(
            f"{where} is {array.dtype}, the model takes {dtype}",
            *type_remedies(dtype, str(array.dtype), array),
        )
    shape = list(port.shape)
    fits = len(shape) == array.ndim and all(
        not isinstance(expected, int) or expected == actual
        for expected, actual in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise DataError(
            f"{where} has shape {list(array.shape)}, the model takes {shape}",
            *shape_remedies(shape, array.shape),
        )
    return np.ascontiguousarray(array)


def _check_finite(name: str, array: Array, index: int) -> None:
    if array.ndim and not len(array):
        raise DataError(f"batch {index}, {name} has no samples", DataEdit("remove empty batches"))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        what = "NaN" if np.isnan(array).any() else "Inf"
        raise DataError(
            f"batch {index}, {name} holds {what}", DataEdit("remove or repair that sample")
        )
