"""Inputs for a TFLite file in the layout of the network: the user's batches, or random ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from qtool.backends.tflite.tflite_file import Port, TfliteFile
from qtool.core.data import to_batch
from qtool.core.errors import DataError
from qtool.core.types import Array


def file_batches(file: TfliteFile, data: Iterable[Any]) -> Iterator[list[Array]]:
    """Yield batches as arrays in the order of the file's inputs, by name or by position.

    Raises:
        DataError: an input is missing, or has another type or shape.
    """
    names = [p.name for p in file.inputs]
    for index, item in enumerate(data):
        batch = to_batch(item)
        values = dict(zip(names, batch.args, strict=False)) | batch.kwargs
        if missing := [n for n in names if n not in values]:
            raise DataError(
                f"batch {index} lacks input '{missing[0]}'; the file takes {', '.join(names)}"
            )
        yield [_checked(port, values[port.name], index) for port in file.inputs]


def _checked(port: Port, tensor: Any, index: int) -> Array:
    where = f"batch {index}, input '{port.name}'"
    if not isinstance(tensor, torch.Tensor):
        raise DataError(f"{where} is a {type(tensor).__name__}, not a tensor")
    array: Array = tensor.detach().cpu().numpy()
    if array.dtype.kind != "f" and str(array.dtype) != port.dtype:
        raise DataError(f"{where} is {array.dtype}, the file takes {port.dtype}; convert it first")
    fits = array.ndim == len(port.shape) and all(
        e in (-1, a) or (axis == 0 and e == 1)
        for axis, (e, a) in enumerate(zip(port.shape, array.shape, strict=True))
    )
    if not fits:
        raise DataError(f"{where} has shape {list(array.shape)}, the file takes {list(port.shape)}")
    return array


def random_batches(file: TfliteFile, samples: int, size: int) -> Iterator[list[Array]]:
    """Yield random inputs: floats over the range of the quantization behind them, all codes."""
    generator, ranges = np.random.default_rng(0), _ranges(file)
    left = samples
    while left > 0:
        count = min(size, left)
        yield [_random(generator, port, count, ranges.get(port.name)) for port in file.inputs]
        left -= count


def _ranges(file: TfliteFile) -> dict[str, tuple[float, float]]:
    """Return the range of the codes that an input of floats is quantized to, by its name."""
    model, ranges = file.model, dict[str, tuple[float, float]]()
    for port, index in zip(file.inputs, model.inputs, strict=True):
        for op in model.operators:
            q = model.tensors[op.outputs[0]].quantization if op.outputs else None
            if op.name == "QUANTIZE" and index in op.inputs and q is not None:
                kind = np.iinfo(model.tensors[op.outputs[0]].type)
                scale, zero = float(q.scale[0]), int(q.zero_point[0])
                ranges[port.name] = (kind.min - zero) * scale, (kind.max - zero) * scale
    return ranges


def _random(
    generator: np.random.Generator,
    port: Port,
    count: int,
    between: tuple[float, float] | None,
) -> Array:
    shape = [count if i == 0 and s in (-1, 1) else abs(s) for i, s in enumerate(port.shape)]
    if port.dtype == "float32":
        low, high = between or (-1.0, 1.0)
        return generator.uniform(low, high, shape).astype(np.float32)
    if port.dtype in ("int8", "uint8", "int16"):
        kind = np.iinfo(port.dtype)
        return generator.integers(kind.min, kind.max + 1, shape).astype(port.dtype)
    if port.dtype in ("int32", "int64", "bool"):
        return generator.integers(0, 2, shape).astype(port.dtype)
    raise DataError(f"random inputs of type {port.dtype} cannot be generated; give --data")
