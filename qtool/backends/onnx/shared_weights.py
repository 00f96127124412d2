"""Files that keep their weights in other ONNX files.

ONNX stores a large tensor as a range of bytes of another file; here that file is an ONNX file,
whose message holds the bytes, so that two graphs on the same weights need them once.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

_LEAST = 1024  # bytes of a tensor that is worth a reference
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_SIZES = {_DOUBLE: 8, _FLOAT: 4}
# numbers of fields: graph of a model, initializer of a graph, name and raw_data of a tensor
_GRAPH, _INITIALIZER, _NAME, _RAW_DATA = 7, 5, 8, 9


@dataclass(frozen=True)
class Place:
    """Where the bytes of a tensor are.

    Attributes:
        location: path of the file, relative to that of the reading model.
        offset, length: first byte, and number of bytes.
    """

    location: str
    offset: int
    length: int


def stored_places(path: Path, location: str) -> dict[str, Place]:
    """Return where an ONNX file holds the bytes of its constants, by their names.

    Args:
        path: the file.
        location: how the reading model names it.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        tensors = [
            tensor
            for graph in _ranges(data, (0, len(data)), _GRAPH)
            for tensor in _ranges(data, graph, _INITIALIZER)
        ]
        places = {}
        for tensor in tensors:
            for start, end in _ranges(data, tensor, _RAW_DATA):
                ((first, last),) = _ranges(data, tensor, _NAME)
                places[data[first:last].decode()] = Place(location, start, end - start)
        return places


def refer(model: onnx.ModelProto, places: Mapping[str, Place], folder: str) -> None:
    """Replace the bytes of large constants by references, in place.

    Args:
        model: its constants without a place stay, but for references to files of their own.
        places: name of a constant -> where its bytes are.
        folder: folder of the files that the constants refer to so far, relative to that of the
            model.
    """
    for tensor in model.graph.initializer:
        place = places.get(tensor.name)
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = (Path(folder) / entry.value).as_posix()
        if place is None or len(tensor.raw_data) < _LEAST:
            continue
        assert place.length == len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        values = {"location": place.location, "offset": place.offset, "length": place.length}
        for key, value in values.items():
            tensor.external_data.add(key=key, value=str(value))


def _ranges(data: mmap.mmap, within: tuple[int, int], number: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each field of bytes with a number, in a range of a message."""
    at, end = within
    while at < end:
        key, at = _varint(data, at)
        kind, size = key & 7, 0
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
        else:
            size = _SIZES[kind]
        if key >> 3 == number and kind == _BYTES:
            yield at, at + size
        at += size


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte, the low ones first, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
