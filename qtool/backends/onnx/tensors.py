"""Stored tensors of ONNX models as arrays, those in other files as views of these."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qtool.core.types import Array

_PACKED = tuple(
    getattr(TensorProto, name)
    for name in ("INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1")
    if hasattr(TensorProto, name)
)
"""Types of which a byte holds several values."""


def numpy_type(code: int) -> np.dtype[Any]:
    """Return the element type of a code of ONNX.

    Raises:
        ValueError: there is no such code, as in a damaged file.
    """
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(code))
    except KeyError as error:
        raise ValueError(f"there is no element type {code}") from error


@dataclass(frozen=True)
class StoredTensors:
    """The tensors of a model. Another file is mapped once, as long as a view of it is used.

    Attributes:
        folder: folder of the model; None if all tensors are in its message.
    """

    folder: Path | None
    _maps: dict[Path, mmap.mmap] = field(default_factory=dict)

    def array(self, tensor: onnx.TensorProto) -> Array:
        """Return a tensor; text as an array of bytes objects.

        Raises:
            ValueError: its data does not fit its type and shape, or lies outside of the folder.
            OSError: a file cannot be read.
        """
        shape = tuple(tensor.dims)
        if tensor.data_type == TensorProto.STRING:
            return np.array(list(tensor.string_data), object).reshape(shape)
        if tensor.data_location != TensorProto.EXTERNAL:
            return np.array(numpy_helper.to_array(tensor))  # torch requires writable memory
        dtype = numpy_type(tensor.data_type)
        if not prod(shape):
            return np.zeros(shape, dtype)
        place = {e.key: e.value for e in tensor.external_data}
        data, start = self._map(place["location"]), int(place.get("offset", 0))
        if tensor.data_type not in _PACKED:
            return np.frombuffer(data, dtype, prod(shape), start).reshape(shape)
        raw = data[start : start + int(place.get("length", len(data) - start))]
        packed = TensorProto(data_type=tensor.data_type, dims=shape, raw_data=raw)
        return np.array(numpy_helper.to_array(packed))

    def _map(self, location: str) -> mmap.mmap:
        """Return a file, mapped copy-on-write, since torch requires writable memory."""
        folder = self.folder or Path()
        path = folder / location
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"its data '{location}' is outside of its folder")
        if path not in self._maps:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[path]
