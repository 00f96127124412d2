"""Maps external weights of an ONNX file into memory instead of reading them."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnx.storage import tensor_bytes
from qtool.backends.onnx.subgraph import TORCH_TYPES
from qtool.core.downloads import DOWNLOAD
from qtool.core.errors import CaptureError
from qtool.core.paths import is_file
from qtool.core.types import Array

_CHUNK = 1 << 24  # elements that are converted at once
_MIN_MAPPED = 1 << 12
"""Smallest number of elements to map; smaller tensors are read, since operators need their values
(sizes, axes)."""


class MappedArray(Array):
    """An array that is mapped from a file."""


@dataclass(frozen=True)
class ExternalWeights:
    """Tensors of a model that are stored in other files.

    Attributes:
        arrays: name -> mapped array.
        maps: the mapped files.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict)
    maps: tuple[mmap.mmap, ...] = ()

    def release(self) -> None:
        """Release the memory of pages that were read; they are read again on access."""
        for mapped in self.maps:
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


NO_EXTERNAL_WEIGHTS = ExternalWeights()


def map_external_weights(
    model: onnx.ModelProto, folder: Path, converted: frozenset[int] = frozenset()
) -> ExternalWeights:
    """Map large external tensors, and make them inputs of the model; read small ones into it.

    Args:
        model: changed in place.
        folder: folder of the model.
        converted: element types of which temporary files in float32 are mapped.

    Raises:
        CaptureError: a file is missing, truncated, or outside of the model's folder.
    """
    graph, arrays, maps = model.graph, dict[str, Array](), dict[str, mmap.mmap]()
    stored = list(graph.initializer)
    inputs = {i.name for i in graph.input}
    for tensor in stored:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        try:
            array = _array(tensor, folder, maps)
        except ValueError as error:
            raise CaptureError(f"'{tensor.name}' is not where the file says ({error})") from error
        if array.size < _MIN_MAPPED:
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
            continue
        if tensor.data_type in converted:
            tensor.data_type = TensorProto.FLOAT
            array = _in_float32(array, maps, tensor.name)
        arrays[tensor.name] = array.view(MappedArray)
        if tensor.name not in inputs:
            kind = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            graph.input.append(onnx.ValueInfoProto(name=tensor.name, type=kind))
    del graph.initializer[:]
    graph.initializer.extend(t for t in stored if t.name not in arrays)
    return ExternalWeights(arrays, tuple(maps.values()))


def _array(tensor: TensorProto, folder: Path, maps: dict[str, mmap.mmap]) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name, start = entries.get("location", ""), int(entries.get("offset", 0))
    size = tensor_bytes(tensor)
    if name not in maps:
        maps[name] = _map(folder, name, tensor.name)
    mapped = maps[name]
    kind, shape = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)), tuple(tensor.dims)
    if start + size > len(mapped):
        raise CaptureError(
            f"{folder / name} is cut off: '{tensor.name}' is not whole in it", DOWNLOAD
        )
    if tensor.data_type not in {*TORCH_TYPES, TensorProto.BFLOAT16} or size % kind.itemsize:
        raise CaptureError(f"'{tensor.name}' has a type without torch tensors")
    return np.frombuffer(mapped, kind, size // kind.itemsize, start).reshape(shape)


def _in_float32(array: Array, maps: dict[str, mmap.mmap], name: str) -> Array:
    """Return an array in float32, mapped from a temporary file."""
    flat = array.reshape(-1)
    with TemporaryFile() as file:
        for start in range(0, flat.size, _CHUNK):
            flat[start : start + _CHUNK].astype(np.float32).tofile(file)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    maps[f"/{name}"] = mapped
    return np.frombuffer(mapped, np.float32).reshape(array.shape)


def _map(folder: Path, name: str, tensor: str) -> mmap.mmap:
    """Map a file copy-on-write, since torch needs writable memory."""
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()) or not is_file(file):
        raise CaptureError(f"{folder} lacks {name}, which holds '{tensor}'")
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
