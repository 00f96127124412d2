"""Tables of the schema as bytes, with the builder of the `flatbuffers` package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flatbuffers
import numpy as np

from qtool.plugins.tflite.file.schema import IDENTIFIER, OPTIONS, TABLES

_ALIGNMENT = 16
"""Bytes; that of the data of buffers in the schema."""

_PREPEND = {
    "bool": "PrependBoolSlot",
    "int8": "PrependInt8Slot",
    "uint8": "PrependUint8Slot",
    "int32": "PrependInt32Slot",
    "uint32": "PrependUint32Slot",
    "uint64": "PrependUint64Slot",
    "float32": "PrependFloat32Slot",
}

_SHARED = ("float32", "int64")
"""Types of vectors that are stored once: scales and zero points, which are 0 for each channel."""
Vectors = dict[tuple[str, bytes], int]
"""Type and bytes of a vector -> where it is."""


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


_NAME_OF_OPTIONS = {number: name for name, number in OPTIONS.items()}
