"""Inputs for an ONNX file: made up, or taken from the user's batches by its input names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qtool.data import batches
from qtool.errors import DataError, FileError
from qtool.integer.qdq import QdqGraph
from qtool.verification.runtime import session

__all__ = ["data_inputs", "random_inputs"]

Arrays = list[np.ndarray[Any, Any]]
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
}


def data_inputs(path: str | Path, data: Iterable[Any]) -> Iterator[Arrays]:
    """The user's batches as arrays in the order of the file's inputs.

    Raises:
        DataError: a batch lacks an input of the file.
    """
    names = [i.name for i in session(path).get_inputs()]
    for index, batch in enumerate(batches(data)):
        given = dict(zip(names, batch.args, strict=False)) | batch.kwargs
        missing = [n for n in names if n not in given]
        if missing:
            raise DataError(
                f"batch {index} lacks input '{missing[0]}'; the file takes {', '.join(names)}"
            )
        batch.check_finite(index)
        yield [given[n].numpy() for n in names]


def random_inputs(
    path: str | Path, samples: int, batch_size: int, seed: int = 0
) -> Iterator[Arrays]:
    """Reproducible random batches: floats over the range of the QuantizeLinear that reads them (a
    little beyond, so that saturation is met), other types 0 or 1; a dynamic dimension behind the
    first has size 8.

    Raises:
        DataError: an input has a type that cannot be made up.
    """
    generator = np.random.default_rng(seed)
    inputs = session(path).get_inputs()
    ranges = _ranges(path)
    for start in range(0, samples, batch_size):
        count = min(batch_size, samples - start)
        made: Arrays = []
        for each in inputs:
            dtype = _DTYPES.get(each.type)
            if dtype is None:
                raise DataError(f"input '{each.name}' is {each.type}; give data for it with --data")
            sizes = [s if isinstance(s, int) else 8 for s in each.shape]
            if each.shape and not isinstance(each.shape[0], int):
                sizes[0] = count
            low, high = ranges.get(each.name, (-1.0, 1.0))
            values = (
                generator.uniform(low, high, sizes)
                if dtype is np.float32
                else generator.integers(0, 2, sizes)
            )
            made.append(values.astype(dtype))
        yield made


def _ranges(path: str | Path) -> dict[str, tuple[float, float]]:
    try:
        graph = QdqGraph(onnx.load(path))
    except Exception as error:
        raise FileError(f"{path}: not a readable ONNX file ({error})") from error
    found = {}
    for name in graph.inputs:
        for node in graph.readers.get(name, []):
            if node.op_type == "QuantizeLinear":
                params = graph.params(node)
                scale, zero = float(params.scale), int(params.zero_point)
                margin = 0.05 * scale * params.qtype.levels
                low, high = (scale * (q - zero) for q in (params.qtype.qmin, params.qtype.qmax))
                found[name] = (low - margin, high + margin)
    return found
