"""The user's batches as inputs of ONNX files, and an ONNX file as a function of tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qtool.data import Batch, to_batch
from qtool.errors import DataError
from qtool.verification.runtime import run, session

__all__ = ["Feeder", "OnnxFunction", "check_same_inputs", "resized"]

Array = np.ndarray[Any, Any]
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(bool)": "bool",
}


class Feeder:
    """The inputs of a file, and batches checked against them."""

    def __init__(self, file: Path) -> None:
        self.inputs = session(file).get_inputs()

    def arrays(self, item: Any, index: int) -> list[Array]:
        """One batch as arrays in the order of the file's inputs. Of a tuple longer than the inputs
        the first are used, so that (images, labels) works.

        Raises:
            DataError: an input is missing, or has another type or shape; NaN or Inf.
        """
        batch = to_batch(item)
        names = [i.name for i in self.inputs]
        given = dict(zip(names, batch.args, strict=False)) | batch.kwargs
        if missing := [n for n in names if n not in given]:
            takes = ", ".join(names)
            raise DataError(f"batch {index} lacks input '{missing[0]}'; the model takes {takes}")
        Batch((), {n: given[n] for n in names}).check_finite(index)
        return [_checked(i, given[i.name], index) for i in self.inputs]


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
    """Raises DataError unless all files have inputs of the same names, types and ranks, and as
    many outputs."""
    first = [(i.name, i.type, len(i.shape)) for i in Feeder(files[0]).inputs]
    outputs = len(session(files[0]).get_outputs())
    for file in files[1:]:
        other = [(i.name, i.type, len(i.shape)) for i in Feeder(file).inputs]
        if other != first:
            raise DataError(
                f"{file.name} takes other inputs ({_listed(other)}) than {files[0].name} "
                f"({_listed(first)}); compare models of one task"
            )
        if (count := len(session(file).get_outputs())) != outputs:
            raise DataError(f"{file.name} has {count} outputs, {files[0].name} has {outputs}")


def _listed(inputs: Sequence[tuple[str, str, int]]) -> str:
    return ", ".join(f"{name}: {kind} of rank {rank}" for name, kind, rank in inputs)


def resized(file: Path, arrays: Sequence[Array], size: int) -> list[Array] | None:
    """A batch cut or repeated to `size` samples; None where the file takes another number."""
    inputs = session(file).get_inputs()
    fixed = [i.shape[0] for i in inputs if i.shape and isinstance(i.shape[0], int)]
    if any(f != size for f in fixed):
        return None
    return [
        np.ascontiguousarray(np.take(a, np.arange(size) % len(a), axis=0)) if a.ndim else a
        for a in arrays
    ]


class OnnxFunction:
    """An ONNX file that is called as the float model was: tensors in, by position or by name; one
    tensor out, or a tuple of them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.session = session(file)
        self.feeder = Feeder(file)
        self.calls = itertools.count()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        batch = Batch(to_batch(list(args)).args if args else (), to_batch(kwargs).kwargs)
        arrays = self.feeder.arrays(batch, next(self.calls))
        found = tuple(torch.from_numpy(o) for o in run(self.session, arrays))
        return found[0] if len(found) == 1 else found

    def eval(self) -> OnnxFunction:
        """Itself: evaluation loops call model.eval()."""
        return self
