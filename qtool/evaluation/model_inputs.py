"""Inputs of model files: whether they are the same, random ones, batches of another size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.formats import open_file, open_model
from qtool.backends.session import FLOATS, in_order_of
from qtool.core import random_inputs as generated
from qtool.core.errors import DataError
from qtool.core.random_inputs import Input, is_cache
from qtool.core.remedies import Argument, OtherFile
from qtool.core.summary import group_names
from qtool.core.types import Array

DTYPES = {
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

_KV_CACHE_PREFIX = "past_key_values"  # of inputs
_NOISE = "noise"  # what a model draws, as an input: alone, or with a number each


def describe_input(tensor: Any) -> Input:
    """Return an input of a session; a dimension without a name has its own."""
    shape = [
        s if isinstance(s, int) else s or f"{tensor.name} {axis}"
        for axis, s in enumerate(tensor.shape)
    ]
    return Input(tensor.name, DTYPES.get(tensor.type, tensor.type), tuple(shape))


def check_cache(file: str | Path, inputs: Sequence[Input]) -> None:
    """Check that a float model with a KV cache has that of a file, which may be in int8.

    Args:
        file: the file.
        inputs: inputs of the model.

    Raises:
        DataError: the file's is in int8 and the model's is not.
    """
    types = {each.dtype for each in inputs if is_cache(each)}
    if not types or "int8" in types:
        return
    if any(each.dtype == "int8" for each in map(describe_input, open_model(file).inputs)):
        raise DataError(
            f"{Path(file).name} has its KV cache in int8, which cannot be compared with the float "
            f"model's",
            Argument("--eval-data", text="measure such a file when it is written ({})"),
            OtherFile("evaluate a file with its cache in float"),
        )


def check_same_inputs(files: Sequence[Path]) -> None:
    """Check that all files have the same inputs (types, ranks) and number of outputs.

    Inputs of the same names are matched by name, others by position: exporters choose other names.

    Raises:
        DataError: they do not.
    """
    reference, *others = (open_model(file) for file in files)
    first = [(i.name, _kind(i), len(i.shape)) for i in reference.inputs]
    outputs = len(reference.outputs)
    for file, session in zip(files[1:], others, strict=True):
        matched = in_order_of(reference, session).inputs
        other = [(i.name, _kind(i), len(i.shape)) for i in matched]
        names, own = ([name for name, *_ in inputs] for inputs in (first, other))
        cached = [any(name.startswith(_KV_CACHE_PREFIX) for name in each) for each in (names, own)]
        if cached[0] != cached[1]:
            with_cache, without = (files[0], file) if cached[0] else (file, files[0])
            raise DataError(
                f"{with_cache.name} has a KV cache as inputs, {without.name} has none",
                Argument("--task", text="take both of one {}"),
            )
        if [kind for _, *kind in other] != [kind for _, *kind in first]:
            drawn = {name.partition(".")[0] for name in {*own} ^ {*names}} == {_NOISE}
            both = Argument("--noise-input", text="draw the noise of both files with {}")
            same = OtherFile("compare models of one task")
            written = OtherFile("give the file that `qtool quantize --float-file` writes with it")
            raise DataError(
                f"{file.name} takes other inputs ({_listed(other)}) than {files[0].name} "
                f"({_listed(first)})",
                *([both, written] if drawn else [same]),
            )
        if (count := len(session.outputs)) != outputs:
            raise DataError(f"{file.name} has {count} outputs, {files[0].name} has {outputs}")


def _kind(tensor: Any) -> str:
    """Return the type of an input, one for all floating point types: `feeds` converts them."""
    return "tensor(float)" if tensor.type in FLOATS else str(tensor.type)


def _listed(inputs: Sequence[tuple[str, str, int]]) -> str:
    return group_names([f"{name}: {kind} of rank {rank}" for name, kind, rank in inputs])


def fixed_batch(files: Sequence[str | Path]) -> tuple[str, int] | None:
    """Return the name of the first file that takes one batch size, and that size; None without."""
    for file in files:
        if open_file(file).takes_one_sample:
            return Path(file).name, 1
        firsts = {i.shape[0] for i in open_model(file).inputs if i.shape}
        fixed = [first for first in firsts if isinstance(first, int) and first > 0]
        if len(fixed) == 1:
            return Path(file).name, fixed[0]
    return None


def timed_samples(files: Sequence[str | Path], size: int | None = None) -> int | None:
    """Return to how many samples a batch is cut or repeated, to time files with.

    That is one if a file takes one at a time, and None, the batch as it is, without a size and if
    the first file has another fixed size.
    """
    if any(open_file(file).takes_one_sample for file in files):
        return 1
    firsts = {i.shape[0] for i in open_model(files[0]).inputs if i.shape}
    return None if any(isinstance(first, int) and first != size for first in firsts) else size


def random_inputs(
    path: str | Path,
    samples: int,
    batch_size: int,
    seed: int = 0,
    known: Mapping[str, int] | None = None,
) -> Iterator[list[Array]]:
    """Generate reproducible random batches, with the sizes of `core.random_inputs`.

    Floats cover the range of the QuantizeLinear that reads them and a little more, so that values
    saturate. Integers that select rows of a table, such as token ids, are rows of it; masks are 1,
    and other integers 0 or 1. Every other batch of a decoder with a KV cache is a prompt (the cache
    is empty), the others are single tokens.

    Args:
        path: the file.
        samples: number of samples.
        batch_size: samples in a batch.
        seed: seed of the random generator.
        known: sizes of dynamic dimensions, by name; a decoder with a cache has its own.

    Raises:
        DataError: an input has a type that cannot be generated.
    """
    generator = np.random.default_rng(seed)
    inputs = [describe_input(i) for i in open_model(path).inputs]
    ranges = open_file(path).input_ranges()
    if odd := [i for i in inputs if i.dtype not in DTYPES.values()]:
        raise DataError(
            f"input '{odd[0].name}' is {odd[0].dtype}",
            Argument("--data", text="give data for it with {}"),
        )
    calls = itertools.cycle(generated.calls_with_cache(inputs).values() or (known or {},))
    for start in range(0, samples, batch_size):
        count = min(batch_size, samples - start)
        yield generated.random_inputs(inputs, count, generator, ranges, next(calls))
