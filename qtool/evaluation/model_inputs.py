"""Inputs for a model file: the user's batches by the file's input names, or random ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qtool.backends.open_files import open_model
from qtool.backends.session import FLOATS, Session
from qtool.backends.table import open_file
from qtool.core import random_inputs as generated
from qtool.core.argument_names import argument
from qtool.core.data import Batch, batches, to_batch
from qtool.core.data.arguments import Arguments
from qtool.core.data.named_tensors import named_leaves
from qtool.core.errors import DataError
from qtool.core.random_inputs import Input
from qtool.core.summary import group_names
from qtool.core.types import Array

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(bool)": "bool",
}

_CACHE = "past_key_values"
"""Begin of the names of inputs for a KV cache."""


class Feeder:
    """The inputs of a file; converts batches to arrays for them.

    Attributes:
        inputs: in order.
        names: of the inputs.
        batch_size: the number of samples that the file takes; None if it is not fixed.
    """

    def __init__(self, file: str | Path | Session) -> None:
        self.inputs = (open_model(file) if isinstance(file, str | Path) else file).inputs
        self.names = [i.name for i in self.inputs]
        self._arguments = Arguments(None, frozenset(self.names), frozenset(self.names))
        firsts = {i.shape[0] if i.shape else None for i in self.inputs}
        size = next(iter(firsts)) if len(firsts) == 1 else None
        self.batch_size = size if isinstance(size, int) and size > 0 else None

    def arrays(self, item: Any, index: int) -> list[Array]:
        """Return one batch as arrays in the order of the file's inputs.

        Extra items of a tuple are ignored, so that (images, labels) works; labels in a dict, too,
        and its only other entry is the only input, whatever its key. Nested items have the
        names of `named_leaves`. A batch without the KV cache of a decoder starts with an empty one.

        Raises:
            DataError: an input is missing, has another type or shape, or holds NaN or Inf.
        """
        names = self.names
        batch, _ = self._arguments.of_batch(to_batch(item))
        values = named_leaves(batch, names)
        gives = ", ".join(values) or "nothing"
        if not values.keys() >= set(names):
            values |= self._empty_cache(values)
        if missing := [n for n in names if n not in values]:
            raise DataError(
                f"batch {index} lacks input '{missing[0]}': it gives {gives}; the model takes "
                f"{', '.join(names)}{_hint(missing[0])}"
            )
        Batch((), {n: values[n] for n in names}).check_finite(index)
        return [_checked(i, values[i.name], index) for i in self.inputs]

    def _empty_cache(self, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return a KV cache without tokens for a batch that has no part of a cache."""
        caches = [c for c in map(_describe, self.inputs) if generated.is_cache(c)]
        if any(c.name in values or c.dtype not in _DTYPES.values() for c in caches):
            return {}
        samples = Batch((), dict(values)).size
        lengths = [c.shape[generated.CACHED_TOKENS] for c in caches]
        shapes = generated.sizes(caches, samples, {s: 0 for s in lengths if isinstance(s, str)})
        return {
            c.name: torch.zeros(shape, dtype=getattr(torch, c.dtype))
            for c, shape in zip(caches, shapes, strict=True)
        }


def _describe(tensor: Any) -> Input:
    """Return an input of a session; a dimension without a name has its own."""
    shape = [
        s if isinstance(s, int) else s or f"{tensor.name} {axis}"
        for axis, s in enumerate(tensor.shape)
    ]
    return Input(tensor.name, _DTYPES.get(tensor.type, tensor.type), tuple(shape))


def _checked(expected: Any, tensor: Any, index: int) -> Array:
    where = f"batch {index}, input '{expected.name}'"
    if not isinstance(tensor, torch.Tensor):
        raise DataError(f"{where} is a {type(tensor).__name__}, not a tensor")
    dtype = _DTYPES.get(expected.type, expected.type)
    if expected.type in FLOATS and tensor.is_floating_point():
        tensor = tensor.to(getattr(torch, dtype))  # as calibration does, with a note
    array: Array = tensor.detach().cpu().numpy()
    if str(array.dtype) != dtype:
        raise DataError(f"{where} is {array.dtype}, the model takes {dtype}; convert it first")
    shape = list(expected.shape)
    fits = len(shape) == array.ndim and all(
        not isinstance(e, int) or e == a for e, a in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise DataError(f"{where} has shape {list(array.shape)}, the model takes {shape}")
    return array


def check_same_inputs(files: Sequence[Path]) -> None:
    """Check that all files have the same inputs (types, ranks) and number of outputs.

    Inputs are matched by position, so that their names may differ: exporters choose other ones.

    Raises:
        DataError: they do not.
    """
    reference, *others = (open_model(file) for file in files)
    first = [(i.name, _kind(i), len(i.shape)) for i in reference.inputs]
    outputs = len(reference.outputs)
    for file, session in zip(files[1:], others, strict=True):
        other = [(i.name, _kind(i), len(i.shape)) for i in session.inputs]
        names, own = ([name for name, *_ in inputs] for inputs in (first, other))
        if own != names and sorted(own) == sorted(names):
            raise DataError(
                f"{file.name} takes the inputs of {files[0].name} in another order "
                f"({', '.join(own)}); export it with the order {', '.join(names)}"
            )
        cached = [any(name.startswith(_CACHE) for name in each) for each in (names, own)]
        if cached[0] != cached[1]:
            with_cache, without = (files[0], file) if cached[0] else (file, files[0])
            raise DataError(
                f"{with_cache.name} has a KV cache as inputs, {without.name} has none; take both "
                f"of one {argument('--task')}"
            )
        if [kind for _, *kind in other] != [kind for _, *kind in first]:
            raise DataError(
                f"{file.name} takes other inputs ({_listed(other)}) than {files[0].name} "
                f"({_listed(first)}); compare models of one task"
            )
        if (count := len(session.outputs)) != outputs:
            raise DataError(f"{file.name} has {count} outputs, {files[0].name} has {outputs}")


def _kind(tensor: Any) -> str:
    """Return the type of an input, one for all floating point types: `feeds` converts them."""
    return "tensor(float)" if tensor.type in FLOATS else str(tensor.type)


def _listed(inputs: Sequence[tuple[str, str, int]]) -> str:
    return group_names([f"{name}: {kind} of rank {rank}" for name, kind, rank in inputs])


def resized(
    files: Sequence[str | Path], arrays: Sequence[Array], size: int | None = None
) -> list[Array]:
    """Return a batch cut or repeated to `size` samples, to time files with.

    It is the first sample if a file takes one at a time. The batch stays as it is without a size,
    and if the first file has another fixed size.
    """
    if any(open_file(file).takes_one_sample for file in files):
        return [a[:1] if a.ndim else a for a in arrays]
    firsts = {i.shape[0] for i in open_model(files[0]).inputs if i.shape}
    if size is None or any(isinstance(first, int) and first != size for first in firsts):
        return list(arrays)
    return [
        np.ascontiguousarray(np.take(a, np.arange(size) % len(a), axis=0)) if a.ndim else a
        for a in arrays
    ]


def data_inputs(path: str | Path, data: Iterable[Any]) -> Iterator[list[Array]]:
    """Iterate over the user's batches as arrays in the order of the file's inputs.

    Raises:
        DataError: a batch does not fit the file, see `Feeder`.
    """
    feeder = Feeder(path)
    stream = batches(data, inputs=feeder.names, size=feeder.batch_size)
    for index, batch in enumerate(stream):
        yield feeder.arrays(batch, index)


def random_inputs(
    path: str | Path, samples: int, batch_size: int, seed: int = 0
) -> Iterator[list[Array]]:
    """Generate reproducible random batches, with the sizes of `core.graph.random_inputs`.

    Floats cover the range of the QuantizeLinear that reads them and a little more, so that values
    saturate. Integers that select rows of a table, such as token ids, are rows of it; masks are 1,
    and other integers 0 or 1. Every other batch of a decoder with a KV cache is a prompt (the cache
    is empty), the others are single tokens.

    Args:
        path: the file.
        samples: number of samples.
        batch_size: samples in a batch.
        seed: seed of the random generator.

    Raises:
        DataError: an input has a type that cannot be generated.
    """
    generator = np.random.default_rng(seed)
    inputs = [_describe(i) for i in open_model(path).inputs]
    ranges = open_file(path).input_ranges()
    if odd := [i for i in inputs if i.dtype not in _DTYPES.values()]:
        raise DataError(
            f"input '{odd[0].name}' is {odd[0].dtype}; give data for it with {argument('--data')}"
        )
    calls = itertools.cycle(generated.calls_with_cache(inputs).values() or ({},))
    for start in range(0, samples, batch_size):
        count = min(batch_size, samples - start)
        yield generated.random_inputs(inputs, count, generator, ranges, next(calls))


def _hint(missing: str) -> str:
    """Return how to get an input that no data has."""
    if missing.partition(".")[0] != "cross":
        return ""
    return (
        "; the encoder computes it, so give the float model: `qtool report FILE --model FOLDER`, "
        "or `qtool evaluate`"
    )
