"""The user's batches for a model file, as arrays in the order of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.formats import open_model
from qtool.backends.session import FLOATS, Session, fit_channels
from qtool.core import random_inputs as generated
from qtool.core.array_batches import Items, in_batches_of, is_array, no_batch, whole_arrays
from qtool.core.columns import InputNames
from qtool.core.errors import DataError
from qtool.core.leaf_names import LABELS, by_input_name
from qtool.core.log import log_note
from qtool.core.progress import no_progress
from qtool.core.remedies import CallEdit, DataEdit
from qtool.core.shape_remedies import shape_remedies, type_remedies, unsupported_layout
from qtool.core.types import Array, Progress
from qtool.core.value_names import MASK
from qtool.distributed import current
from qtool.evaluation.language_model import POSITIONS
from qtool.evaluation.model_inputs import DTYPES, describe_input

Arrays = list[Array]
"""A batch: an array per input."""


class Feeder(Iterable[Arrays]):
    """The user's batches as arrays in the order of a file's inputs; the border of what judges it.

    Iterating raises DataError if the data is no iterable of batches, or a batch does not fit; see
    `arrays`.

    Attributes:
        inputs: inputs in order.
        names: names of the inputs.
        takes: the same, as what a model takes.
        batch_size: the number of samples that the file takes; None if it is not fixed.
    """

    def __init__(
        self,
        file: str | Path | Session,
        data: Iterable[Any] = (),
        progress: Progress = no_progress,
    ) -> None:
        """
        Args:
            file: the file.
            data: batches of arrays or tensors in any nesting, or all samples as `whole_arrays`
                takes them.
            progress: wraps the iterable of batches.
        """
        session = open_model(file) if isinstance(file, str | Path) else file
        self.inputs, self._moves = session.inputs, getattr(session, "is_foreign", False)
        self.names = [i.name for i in self.inputs]
        self.takes = InputNames(frozenset(self.names), frozenset(self.names))
        firsts = {i.shape[0] if i.shape else None for i in self.inputs}
        size = next(iter(firsts)) if len(firsts) == 1 else None
        self.batch_size = size if isinstance(size, int) and size > 0 else None
        self._data, self._progress = data, progress

    def __iter__(self) -> Iterator[Arrays]:
        stream = self._read()
        if (size := self.batch_size) is not None:
            stream = in_batches_of(size, stream, list, lambda _, a: list(a), np.concatenate)
        for index, arrays in enumerate(stream):
            current().check()
            yield self.fit(arrays, index)

    def _read(self) -> Iterator[Arrays]:
        data = whole_arrays(self._data, self.takes)
        data = data.as_arrays() if hasattr(data, "as_arrays") else data
        for index, item in enumerate(Items(data, self._progress)):
            named = getattr(item, "kwargs", item)
            if not index and isinstance(named, Mapping):
                labels = [str(k) for k in named if k in LABELS and k not in self.names]
                if labels and len(labels) < len(named):
                    names = ", ".join(labels)
                    log_note(f"'{names}' in the batches is left out: labels are no input")
            yield self.values(item, index)

    def arrays(self, item: Any, index: int) -> Arrays:
        """Return one batch as arrays in the order of the file's inputs.

        Extra items of a tuple are ignored, so that (images, labels) works; labels in a dict, too,
        and its only other entry is the only input, whatever its key. Nested items have the
        names of `by_input_name`. A batch without the KV cache of a decoder starts with an empty
        one, and positions are those of the attention mask.

        Raises:
            DataError: an input is missing, has another type or shape, or holds NaN or Inf.
        """
        return self.fit(self.values(item, index), index)

    def values(self, item: Any, index: int) -> Arrays:
        """Return one batch as arrays of any type and shape; see `arrays`."""
        positional: Sequence[Any] = ()
        named: Mapping[str, Any] = {}
        if hasattr(item, "args") and hasattr(item, "kwargs"):  # a `Batch`
            positional, named = item.args, item.kwargs
        elif is_array(item):
            positional = (item,)
        elif isinstance(item, Mapping):
            named = {str(key): value for key, value in item.items()}
        elif isinstance(item, Sequence) and not isinstance(item, str | bytes) and len(item):
            positional = tuple(item)
        else:
            raise no_batch(item)
        values = by_input_name(positional, self._inputs_of(named), self.names)
        empty = {}
        if not values.keys() >= set(self.names):
            empty = self._empty_cache(values) | self._positions(values)
        _check_names(values, [i.name for i in self.inputs if i.name not in empty], index)
        arrays = {n: _plain(values[n], n, index) for n in self.names if n not in empty} | empty
        size = _size(arrays.values())
        for name in self.names:
            _check_finite(f"input '{name}'", arrays[name], index, size)
        return [arrays[name] for name in self.names]

    def fit(self, arrays: Arrays, index: int) -> Arrays:
        """Return a batch in the floating point types of the inputs.

        Raises:
            DataError: an array has another type or shape.
        """
        fitted = []
        for port, array in zip(self.inputs, arrays, strict=True):
            where = f"batch {index}, input '{port.name}'"
            dtype, shape = DTYPES.get(port.type, port.type), list(port.shape)
            if self._moves:
                array = fit_channels(array, shape)
            if port.type in FLOATS and array.dtype.kind == "f":
                array = array.astype(dtype, copy=False)  # as calibration does, with a note
            if str(array.dtype) != dtype:
                raise DataError(
                    f"{where} is {array.dtype}, the model takes {dtype}",
                    *type_remedies(dtype, str(array.dtype), array),
                )
            sizes = zip(shape, array.shape, strict=False)
            if len(shape) != array.ndim or any(isinstance(s, int) and s != n for s, n in sizes):
                raise DataError(
                    f"{where} has shape {list(array.shape)}, the model takes {shape}",
                    *shape_remedies(shape, array.shape),
                )
            fitted.append(np.ascontiguousarray(array))
        return fitted

    def _inputs_of(self, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entries of a dict without labels; the only one is the only input."""
        inputs = {k: v for k, v in named.items() if k not in LABELS or k in self.names}
        inputs = inputs or dict(named)
        if len(inputs) == len(self.names) == 1 and is_array(next(iter(inputs.values()))):
            return dict(zip(self.names, inputs.values(), strict=True))
        return inputs

    def _positions(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """Return the positions of tokens in a batch that has none, as `generate` of transformers
        counts them: padding in front of a text does not move it."""
        mask, ids = values.get(MASK), values.get("input_ids")
        if POSITIONS not in self.names or POSITIONS in values or mask is None or ids is None:
            return {}
        counted = (_plain(mask, MASK, 0).astype(np.int64).cumsum(-1) - 1).clip(min=0)
        return {POSITIONS: counted[:, -ids.shape[1] :]}

    def _empty_cache(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """Return a KV cache without tokens for a batch that has no part of a cache."""
        caches = [c for c in map(describe_input, self.inputs) if generated.is_cache(c)]
        if any(c.name in values or c.dtype not in DTYPES.values() for c in caches):
            return {}
        lengths = [c.shape[generated.CACHED_TOKENS] for c in caches]
        known = {s: 0 for s in lengths if isinstance(s, str)}
        shapes = generated.sizes(caches, _size(filter(is_array, values.values())), known)
        return {c.name: np.zeros(s, c.dtype) for c, s in zip(caches, shapes, strict=True)}


def _check_names(values: Mapping[str, Any], names: Sequence[str], index: int) -> None:
    """Check that a batch has each input that no data lacks."""
    if missing := [name for name in names if name not in values]:
        encoded = missing[0].partition(".")[0] == "cross"
        text = "the encoder computes it, so give the float model: "
        text += "`qtool report FILE --model FOLDER`, or `qtool evaluate`"
        raise DataError(
            f"batch {index} lacks input '{missing[0]}': it gives {', '.join(values) or 'nothing'}; "
            f"the model takes {', '.join(names)}",
            *([CallEdit(text)] if encoded else []),
        )


def _plain(value: Any, name: str, index: int) -> Array:
    """Return an array or a tensor on any device as an array of numpy."""
    where = f"batch {index}, input '{name}'"
    if not is_array(value):
        raise DataError(f"{where} is a {type(value).__name__}, not an array or tensor")
    if hasattr(value, "detach"):
        if (layout := unsupported_layout(value)) is not None:
            raise DataError(f"{where} is {layout[0]}", layout[1])
        value = value.detach().cpu()
        if value.is_floating_point() and "bfloat16" in str(value.dtype):
            value = value.float()  # numpy has no bfloat16
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise DataError(
            f"{where} is an array of type {array.dtype}, which cannot be a model input",
            DataEdit("give numbers"),
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _size(arrays: Iterable[Any]) -> int:
    """Return the number of samples: the length of the first array that has one."""
    return next((len(a) for a in arrays if a.ndim), 1)


def _check_finite(name: str, array: Array, index: int, size: int) -> None:
    if array.ndim and not len(array) and not size:
        raise DataError(f"batch {index}, {name} has no samples", DataEdit("remove empty batches"))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        nan = bool(np.isnan(array).any())
        odd = np.isnan(array) if nan else np.isinf(array)
        at = f" in its sample {int(np.argwhere(odd)[0, 0])}" if array.ndim else ""
        raise DataError(
            f"batch {index}, {name} holds {'NaN' if nan else 'Inf'}{at}",
            DataEdit("remove or repair that sample"),
        )
