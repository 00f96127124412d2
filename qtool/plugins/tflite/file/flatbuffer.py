"""Tables of the schema as bytes, with the builder of the `flatbuffers` package, and back.

Every offset that is read is checked: a file may be damaged or hostile.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import flatbuffers
import numpy as np

from qtool.core.types import Array
from qtool.plugins.tflite.file.schema import IDENTIFIER, OPTIONS, TABLES

_SCALARS = {
    "bool": "<?",
    "int8": "<b",
    "uint8": "<B",
    "int32": "<i",
    "uint32": "<I",
    "uint64": "<Q",
    "float32": "<f",
}
_NAME_OF_OPTIONS = {number: name for name, number in OPTIONS.items()}


_MAX_TEXT = 4
"""Bytes of names for each byte of the file: names may be shared."""
_ALIGNMENT = 16
"""Bytes; that of the data of buffers in the schema."""

_PREPEND = {kind: f"Prepend{kind.capitalize()}Slot" for kind in _SCALARS}

_SHARED = ("float32", "int64")
"""Types of vectors that are stored once: scales and zero points, which are 0 for each channel."""
Vectors = dict[tuple[str, bytes], int]
"""Type and bytes of a vector -> where it is."""


class MalformedFileError(ValueError):
    """The bytes are not a file of the schema; says why."""


class CutOffError(MalformedFileError):
    """The bytes end before what they refer to."""


def decode(data: bytes) -> dict[str, Any]:
    """Return the table "Model" of a file: field -> value; absent fields have their default.

    Vectors of numbers are arrays that read from `data`; an unknown options table is left out.

    Raises:
        MalformedFileError: an offset, length or type is not that of a TFLite file.
    """
    if data[4:8] != IDENTIFIER:
        raise MalformedFileError(f"it does not begin with the mark {IDENTIFIER.decode()}")
    reader = _Reader(data)
    return reader.table("Model", reader.follow(0))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.tables, self.text = 0, 0

    def scalar(self, form: str, at: int) -> Any:
        if at < 0 or at + struct.calcsize(form) > len(self.data):
            raise CutOffError("an offset leads out of the file; it may be cut off")
        return struct.unpack_from(form, self.data, at)[0]

    def follow(self, at: int) -> int:
        """Return the place that the offset at `at` refers to."""
        return at + int(self.scalar("<I", at))

    def table(self, name: str, at: int) -> dict[str, Any]:
        self.tables += 1
        if self.tables > len(self.data) // 4:  # each needs four bytes, unless offsets are shared
            raise MalformedFileError("it has more tables than bytes for them")
        slots = self._slots(at)
        values: dict[str, Any] = {}
        for slot, field in enumerate(TABLES.get(name, ())):
            if not field:
                continue
            offset = slots[slot] if slot < len(slots) else 0
            if offset:
                values[field[0]] = self._field(field[1], at + offset, values)
            elif field[1] in _SCALARS:
                values[field[0]] = field[2] if len(field) > 2 else 0
        return values

    def _slots(self, at: int) -> tuple[int, ...]:
        """Return the offset of each field of a table within it; 0 for an absent one."""
        vtable = at - int(self.scalar("<i", at))
        size = int(self.scalar("<H", vtable))
        if size < 4 or size % 2:
            raise MalformedFileError("a table has no fields where they should be")
        self.scalar("<B", vtable + size - 1)
        return struct.unpack_from(f"<{size // 2 - 2}H", self.data, vtable + 4)

    def _field(self, kind: str, at: int, values: dict[str, Any]) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], at)
        at = self.follow(at)
        if kind == "string":
            text = self._vector("uint8", at)
            self.text += text.size
            if self.text > _MAX_TEXT * len(self.data):  # one string, read from many places
                raise MalformedFileError("its names are longer than the file")
            return text.tobytes().decode("utf-8", "replace")
        if kind == "union":
            name = _NAME_OF_OPTIONS.get(values.get("builtin_options_type", 0))
            return None if name is None else self.table(name, at)
        if not kind.startswith("["):
            return self.table(kind, at)
        of = kind[1:-1]
        if of not in TABLES:
            return self._vector(of, at)
        count = int(self.scalar("<I", at))
        if count * 4 > len(self.data) - at:
            raise CutOffError("a list is longer than the file")
        return [self.table(of, self.follow(at + 4 + 4 * i)) for i in range(count)]

    def _vector(self, of: str, at: int) -> Array:
        count, dtype = int(self.scalar("<I", at)), np.dtype(of).newbyteorder("<")
        if count * dtype.itemsize > len(self.data) - at - 4:
            raise CutOffError("a list of numbers is longer than the file")
        return np.frombuffer(self.data, dtype, count, at + 4)


def encode(model: Mapping[str, Any], size: int) -> bytes:
    """Return the file of a table "Model".

    Args:
        model: field -> value; fields that are absent have their default.
        size: expected size in bytes, for the builder.
    """
    builder = flatbuffers.Builder(size)
    builder.Finish(_table(builder, "Model", model, {}), IDENTIFIER)
    return bytes(builder.Output())


def _table(
    builder: flatbuffers.Builder, name: str, values: Mapping[str, Any], known: Vectors
) -> int:
    fields = TABLES.get(name, ())
    children = {
        field[0]: _child(builder, field[1], values[field[0]], values, known)
        for field in fields
        if field and field[1] not in _PREPEND and values.get(field[0]) is not None
    }
    builder.StartObject(len(fields))
    for slot, field in enumerate(fields):
        if not field or values.get(field[0]) is None:
            continue
        if field[0] in children:
            builder.PrependUOffsetTRelativeSlot(slot, children[field[0]], 0)
        else:
            default = field[2] if len(field) > 2 else 0
            getattr(builder, _PREPEND[field[1]])(slot, values[field[0]], default)
    return int(builder.EndObject())


def _child(
    builder: flatbuffers.Builder,
    kind: str,
    value: Any,
    values: Mapping[str, Any],
    known: Vectors,
) -> int:
    """Write what a table refers to, and return where it is."""
    if kind == "string":
        return int(builder.CreateString(value))
    if kind == "union":
        return _table(builder, _NAME_OF_OPTIONS[values["builtin_options_type"]], value, known)
    if not kind.startswith("["):
        return _table(builder, kind, value, known)
    of = kind[1:-1]
    if of in TABLES:
        offsets = [_table(builder, of, each, known) for each in value]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())
    if of == "uint8":
        return _aligned_bytes(builder, value)
    array = np.ascontiguousarray(value, np.dtype(of))
    if of not in _SHARED:
        return int(builder.CreateNumpyVector(array))
    key = of, array.tobytes()
    if key not in known:
        known[key] = int(builder.CreateNumpyVector(array))
    return known[key]


def _aligned_bytes(builder: flatbuffers.Builder, data: Any) -> int:
    count = len(data)
    builder.StartVector(1, count, _ALIGNMENT)
    builder.head -= count
    builder.Bytes[builder.head : builder.head + count] = bytes(data)
    return int(builder.EndVector())
