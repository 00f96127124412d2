"""Inputs for an ONNX file: the user's batches by the file's input names, or random ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qtool.backends.onnx.reading import OnnxModel, name_of
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph
from qtool.backends.onnxruntime.session import session
from qtool.core.data import Batch, batches, to_batch
from qtool.core.errors import DataError
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
_GENERATED = ("float32", *(d for d in _DTYPES.values() if "int" in d or d == "bool"))


class Feeder:
    """The inputs of a file; converts batches to arrays for them."""

    def __init__(self, file: str | Path) -> None:
        self.inputs = session(file).get_inputs()

    def arrays(self, item: Any, index: int) -> list[Array]:
        """Return one batch as arrays in the order of the file's inputs.

        Extra items of a tuple are ignored, so that (images, labels) works.

        Raises:
            DataError: an input is missing, has another type or shape, or holds NaN or Inf.
        """
        batch = to_batch(item)
        names = [i.name for i in self.inputs]
        values = dict(zip(names, batch.args, strict=False)) | batch.kwargs
        if missing := [n for n in names if n not in values]:
            takes = ", ".join(names)
            raise DataError(f"batch {index} lacks input '{missing[0]}'; the model takes {takes}")
        Batch((), {n: values[n] for n in names}).check_finite(index)
        return [_checked(i, values[i.name], index) for i in self.inputs]


def _checked(expected: Any, tensor: Any, index: int) -> Array:
    where = f"batch {index}, input '{expected.name}'"
    if not isinstance(tensor, torch.Tensor):
        raise DataError(f"{where} is a {type(tensor).__name__}, not a tensor")
    array: Array = tensor.detach().cpu().numpy()
    dtype = _DTYPES.get(expected.type, expected.type)
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
    first = [(i.name, i.type, len(i.shape)) for i in Feeder(files[0]).inputs]
    outputs = len(session(files[0]).get_outputs())
    for file in files[1:]:
        other = [(i.name, i.type, len(i.shape)) for i in Feeder(file).inputs]
        names, own = ([name for name, *_ in inputs] for inputs in (first, other))
        if own != names and sorted(own) == sorted(names):
            raise DataError(
                f"{file.name} takes the inputs of {files[0].name} in another order "
                f"({', '.join(own)}); export it with the order {', '.join(names)}"
            )
        if [kind for _, *kind in other] != [kind for _, *kind in first]:
            raise DataError(
                f"{file.name} takes other inputs ({_describe(other)}) than {files[0].name} "
                f"({_describe(first)}); compare models of one task"
            )
        if (count := len(session(file).get_outputs())) != outputs:
            raise DataError(f"{file.name} has {count} outputs, {files[0].name} has {outputs}")


def _describe(inputs: Sequence[tuple[str, str, int]]) -> str:
    return ", ".join(f"{name}: {kind} of rank {rank}" for name, kind, rank in inputs)


def resized(file: Path, arrays: Sequence[Array], size: int) -> list[Array] | None:
    """Return a batch cut or repeated to `size` samples; None if the file has another fixed size."""
    inputs = session(file).get_inputs()
    fixed = [i.shape[0] for i in inputs if i.shape and isinstance(i.shape[0], int)]
    if any(f != size for f in fixed):
        return None
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
    for index, batch in enumerate(batches(data)):
        yield feeder.arrays(batch, index)


def random_inputs(
    path: str | Path, samples: int, batch_size: int, seed: int = 0
) -> Iterator[list[Array]]:
    """Generate reproducible random batches.

    Floats cover the range of the QuantizeLinear that reads them and a little more, so that values
    saturate; other types are 0 or 1. A dynamic dimension other than the first has size 8.

    Args:
        path: the file.
        samples: number of samples.
        batch_size: samples in a batch.
        seed: seed of the random generator.

    Raises:
        DataError: an input has a type that cannot be generated.
    """
    generator = np.random.default_rng(seed)
    inputs = session(path).get_inputs()
    ranges = _ranges(path)
    for start in range(0, samples, batch_size):
        count = min(batch_size, samples - start)
        batch: list[Array] = []
        for each in inputs:
            dtype = _DTYPES.get(each.type)
            if dtype not in _GENERATED:
                raise DataError(f"input '{each.name}' is {each.type}; give data for it with --data")
            sizes = [s if isinstance(s, int) else 8 for s in each.shape]
            if each.shape and not isinstance(each.shape[0], int):
                sizes[0] = count
            low, high = ranges.get(each.name, (-1.0, 1.0))
            values = (
                generator.uniform(low, high, sizes)
                if dtype == "float32"
                else generator.integers(0, 2, sizes)
            )
            batch.append(values.astype(dtype))
        yield batch


def _ranges(path: str | Path) -> dict[str, tuple[float, float]]:
    file = OnnxModel.of(path)
    graph, ranges = QdqGraph(file), {}
    for value in file.inputs:
        for node in file.readers(value):
            if node.op_type == "QuantizeLinear":
                params = graph.params(node)
                scale, zero = float(params.scale), int(params.zero_point)
                margin = 0.05 * scale * params.qtype.levels
                low, high = (scale * (q - zero) for q in (params.qtype.qmin, params.qtype.qmax))
                ranges[name_of(value)] = (low - margin, high + margin)
    return ranges
