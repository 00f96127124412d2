"""Reading and writing of TFLite files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.core.atomic import atomic_path
from qtool.core.downloads import DOWNLOAD, check_download
from qtool.core.errors import ExportError, FileError, describe
from qtool.core.paths import is_special_file
from qtool.core.remedies import Argument
from qtool.core.types import Array
from qtool.plugins.tflite.file.flatbuffer import CutOffError, MalformedFileError, decode, encode
from qtool.plugins.tflite.file.model import ABSENT, Model, Operator, PortNames, Quantization, Tensor
from qtool.plugins.tflite.file.schema import (
    CODES,
    CUSTOM,
    ELEMENT_TYPES,
    LAST_OF_BYTE,
    NAMES,
    NUMPY,
    OPTIONS,
    OTHER_TYPES,
    VERSION,
    options_of,
)

_SIGNATURE = "serving_default"
"""The name that LiteRT's own converters give the signature of a model."""
_MAX_BYTES = 2**31 - 1
_MAX_ELEMENTS = 2**31
_MAX_RANK = 64


def load(path: str | Path) -> Model:
    """Read a file.

    Raises:
        FileError: it cannot be read or is no TFLite file; says why.
    """
    if is_special_file(path):
        raise FileError(f"{path}: not a readable TFLite file (not a regular file)")
    check_download(path, FileError)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path}: {describe(error)}") from error
    return from_bytes(data, str(path))


def from_bytes(data: bytes, where: str = "the file") -> Model:
    """Return the model in the bytes of a file; FileError where they are not one."""
    try:
        return _model(decode(data))
    except MalformedFileError as error:
        again = (DOWNLOAD,) if isinstance(error, CutOffError) else ()
        raise FileError(f"{where} is not a valid TFLite file: {error}", *again) from error


def save(model: Model, path: str | Path) -> None:
    """Write a file, whole or not at all."""
    data = to_bytes(model)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


# --- reading -----------------------------------------------------------------------------------


def _model(table: Mapping[str, Any]) -> Model:
    if table["version"] != VERSION:
        raise MalformedFileError(f"its schema has version {table['version']}, not {VERSION}")
    graphs, buffers = table.get("subgraphs", []), table.get("buffers", [])
    if not graphs:
        raise MalformedFileError("it has no subgraph")
    codes = [_operator_type(code) for code in table.get("operator_codes", [])]
    tensors = tuple(_tensor(t, buffers) for t in graphs[0].get("tensors", []))
    operators = tuple(_operator(o, codes, len(tensors)) for o in graphs[0].get("operators", []))
    inputs, outputs = (_indices(graphs[0], kind, len(tensors)) for kind in _ENDS)
    _check_order(tensors, operators, inputs, outputs)
    metadata = {m.get("name", ""): _bytes(m["buffer"], buffers) for m in table.get("metadata", [])}
    signature: Mapping[str, Any] = next(
        (s for s in table.get("signature_defs", []) if not s["subgraph_index"]), {}
    )
    return Model(
        tensors,
        operators,
        inputs,
        outputs,
        table.get("description", ""),
        metadata,
        PortNames(
            _names(tensors, inputs, signature.get("inputs", [])),
            _names(tensors, outputs, signature.get("outputs", [])),
        ),
        subgraphs=len(graphs),
    )


def _operator_type(code: Mapping[str, Any]) -> tuple[str, int, bool]:
    number = max(code["builtin_code"], code["deprecated_builtin_code"])
    if number == CUSTOM:
        return code.get("custom_code", ""), code["version"], True
    return NAMES.get(number, f"operator {number}"), code["version"], False


def _operator(
    table: Mapping[str, Any], codes: Sequence[tuple[str, int, bool]], count: int
) -> Operator:
    index = table["opcode_index"]
    if index >= len(codes):
        raise MalformedFileError(f"an operator has the type {index} of {len(codes)}")
    name, version, custom = codes[index]
    options = dict(table.get("builtin_options") or {})
    inputs = _indices(table, "inputs", count, optional=True)
    outputs = _indices(table, "outputs", count)
    return Operator(name, inputs, outputs, options, version, custom)


_ENDS = ("inputs", "outputs")


def _indices(
    table: Mapping[str, Any], kind: str, count: int, optional: bool = False
) -> tuple[int, ...]:
    indices = tuple(map(int, table.get(kind, ())))
    low = ABSENT if optional else 0
    if any(not low <= i < count for i in indices):
        raise MalformedFileError(f"{kind} name a tensor that there is not")
    return indices


def _check_order(
    tensors: Sequence[Tensor],
    operators: Iterable[Operator],
    inputs: Iterable[int],
    outputs: Iterable[int],
) -> None:
    """Require that each tensor is computed once, and before it is read."""
    known = {i for i, t in enumerate(tensors) if t.data is not None or t.variable} | set(inputs)
    for operator in operators:
        for i in operator.inputs:
            if i != ABSENT and i not in known:
                raise MalformedFileError(
                    f"{operator.name} reads '{tensors[i].name}', which is not computed before it"
                )
        if known & set(operator.outputs):
            raise MalformedFileError(f"{operator.name} computes a tensor that has a value already")
        known |= set(operator.outputs)
    if missing := set(outputs) - known:
        raise MalformedFileError(f"the output '{tensors[min(missing)].name}' is not computed")


def _tensor(table: Mapping[str, Any], buffers: Sequence[Mapping[str, Any]]) -> Tensor:
    name, number = table.get("name", ""), table["type"]
    kind = NUMPY.get(number) or OTHER_TYPES.get(number)
    if kind is None:
        raise MalformedFileError(f"tensor '{name}' has the unknown type {number}")
    shape = tuple(map(int, table.get("shape", ())))
    signature = table.get("shape_signature")
    sizes = None if signature is None or not len(signature) else tuple(map(int, signature))
    if sizes is not None and len(sizes) != len(shape):
        raise MalformedFileError(
            f"tensor '{name}' has shapes of {len(sizes)} and {len(shape)} sizes"
        )
    if any(s < 0 for s in shape) or len(shape) > _MAX_RANK:
        raise MalformedFileError(f"tensor '{name}' has the shape {list(shape)[:8]}")
    data = _bytes(table["buffer"], buffers)
    values = None if not data else _values(name, data, kind, shape)
    quantization = _quantization(name, table.get("quantization") or {}, shape)
    return Tensor(name, kind, shape, sizes, values, quantization, bool(table["is_variable"]))


def _values(name: str, data: bytes, kind: str, shape: tuple[int, ...]) -> Array:
    if kind not in ELEMENT_TYPES:  # packed or text: the bytes as they are
        return np.frombuffer(data, np.uint8)
    dtype, count = np.dtype(kind).newbyteorder("<"), 1
    for size in shape:
        count *= size
    if count > _MAX_ELEMENTS or count * dtype.itemsize != len(data):
        raise MalformedFileError(
            f"tensor '{name}' of shape {list(shape)} has {len(data)} bytes of data"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _quantization(name: str, table: Mapping[str, Any], shape: Sequence[int]) -> Quantization | None:
    scale, zero = table.get("scale"), table.get("zero_point")
    if scale is None or not len(scale):
        return None
    if zero is None or not len(zero):
        zero = np.zeros(len(scale), np.int64)
    if len(zero) == 1 < len(scale):
        zero = np.repeat(zero, len(scale))
    axis = int(table["quantized_dimension"])
    channels = shape[axis] if 0 <= axis < len(shape) else 1
    good = np.isfinite(scale).all() and (scale > 0).all() and len(zero) == len(scale)
    if not good or len(scale) not in (1, channels):
        raise MalformedFileError(f"the quantization of tensor '{name}' is not valid")
    return Quantization(np.asarray(scale), np.asarray(zero), axis)


def _bytes(index: int, buffers: Sequence[Mapping[str, Any]]) -> bytes:
    if index >= len(buffers):
        raise MalformedFileError(f"buffer {index} of {len(buffers)} is missing")
    if buffers[index]["size"] > 1:
        raise MalformedFileError("its weights lie outside of the tables, which qtool cannot read")
    data = buffers[index].get("data")
    return b"" if data is None else data.tobytes()


def _names(
    tensors: Sequence[Tensor], indices: Iterable[int], maps: Iterable[Mapping[str, Any]]
) -> tuple[str, ...]:
    named = {m["tensor_index"]: m.get("name", "") for m in maps}
    return tuple(named.get(i) or tensors[i].name for i in indices)


# --- writing -----------------------------------------------------------------------------------


def to_bytes(model: Model) -> bytes:
    """Return the bytes of a file.

    Raises:
        ExportError: beyond the 2 GiB that a file may have.
    """
    buffers: list[dict[str, Any]] = [{}]  # the first one is empty, by convention
    shared: dict[bytes, int] = {}
    tensors = [_written_tensor(t, buffers, shared) for t in model.tensors]
    types = dict.fromkeys((o.name, o.version, o.custom) for o in model.operators)
    index_of = {kind: i for i, kind in enumerate(types)}
    graph = {
        "tensors": tensors,
        "inputs": model.inputs,
        "outputs": model.outputs,
        "operators": [_written_operator(o, index_of) for o in model.operators],
        "name": "main",
    }
    metadata = []
    for name, data in model.metadata.items():
        metadata.append({"name": name, "buffer": len(buffers)})
        buffers.append({"data": data})
    signature = {
        "inputs": _maps(model.names.inputs, model.inputs),
        "outputs": _maps(model.names.outputs, model.outputs),
        "signature_key": _SIGNATURE,
    }
    size = sum(len(b["data"]) for b in buffers if b)
    if size > _MAX_BYTES:
        raise ExportError(
            f"the weights have {size / 2**30:.1f} GiB and a TFLite file at most 2",
            Argument("--recipe", text="use fewer bits with {}"),
            Argument("--target", text="choose another {}"),
        )
    table = {
        "version": VERSION,
        "operator_codes": [_written_type(*kind) for kind in types],
        "subgraphs": [graph],
        "description": model.description,
        "buffers": buffers,
        "metadata": metadata,
        "signature_defs": [signature],
    }
    return encode(table, size + 1024)


def _maps(names: Sequence[str], indices: Sequence[int]) -> list[dict[str, Any]]:
    return [{"name": n, "tensor_index": i} for n, i in zip(names, indices, strict=True)]


def _written_type(name: str, version: int, custom: bool) -> dict[str, Any]:
    number = CUSTOM if custom else CODES[name]
    return {
        "deprecated_builtin_code": min(number, LAST_OF_BYTE),
        "builtin_code": number,
        "custom_code": name if custom else None,
        "version": version,
    }


def _written_tensor(
    tensor: Tensor, buffers: list[dict[str, Any]], shared: dict[bytes, int]
) -> dict[str, Any]:
    if tensor.type not in ELEMENT_TYPES:
        raise ExportError(
            f"tensor '{tensor.name}' is of the type {tensor.type}, which qtool does not write"
        )
    index = 0
    if tensor.data is not None:
        data = np.ascontiguousarray(tensor.data).tobytes()
        index = shared.setdefault(data, len(buffers))
        if index == len(buffers):
            buffers.append({"data": data})
    q = tensor.quantization
    return {
        "shape": tensor.shape,
        "type": ELEMENT_TYPES[tensor.type],
        "buffer": index,
        "name": tensor.name,
        "quantization": None
        if q is None
        else {
            "scale": q.scale,
            "zero_point": q.zero_point,
            "quantized_dimension": q.axis,
        },
        "is_variable": tensor.variable,
        "shape_signature": tensor.signature,
        "has_rank": not tensor.shape,
    }


def _written_operator(
    operator: Operator, index_of: Mapping[tuple[str, int, bool], int]
) -> dict[str, Any]:
    options = None if operator.custom else options_of(operator.name)
    return {
        "opcode_index": index_of[operator.name, operator.version, operator.custom],
        "inputs": operator.inputs,
        "outputs": operator.outputs,
        "builtin_options_type": 0 if options is None else OPTIONS[options],
        "builtin_options": None if options is None else operator.options,
    }
