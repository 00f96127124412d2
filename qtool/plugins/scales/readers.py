"""The scales of other tools' files, as one kind of record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.reading import (
    OnnxModel,
    array_of,
    input_at,
    is_constant,
    name_of,
)
from qtool.core.affine import Affine
from qtool.core.errors import MALFORMED, CalibrationError, FileError, missing
from qtool.core.paths import is_file
from qtool.core.remedies import OtherFile
from qtool.core.types import INT8, INT16, INT32, UINT8, UINT16, Array, QType
from qtool.frontends.onnx.value_names import label_of


@dataclass(frozen=True, eq=False)
class TensorScale:
    """Scale and zero point of one tensor.

    Attributes:
        names: names that the tensor may have in the float file, the best first; those of a weight
            are its own or that of its layer.
        params: parameters of its codes.
        is_weight: whether it is known to be a weight.
        values: dequantized weights, float32; None where the file has none.
    """

    names: tuple[str, ...]
    params: Affine
    is_weight: bool = False
    values: Array | None = None


@dataclass(frozen=True, eq=False)
class FileScales:
    """The scales of a file.

    Attributes:
        path: path of the file, for messages.
        tool: tool that wrote it.
        scales: those that qtool can read, in the order of the file.
        refused: tensor -> why its scale cannot be taken.
    """

    path: str
    tool: str
    scales: tuple[TensorScale, ...]
    refused: Mapping[str, str] = field(default_factory=dict)


__all__ = ["READERS", "FileScales", "TensorScale", "read_scales"]

_QTYPES = {t.dtype: t for t in (UINT8, INT8, UINT16, INT16, INT32)}
_UNSIGNED = {8: UINT8, 16: UINT16}
_INTEGERS = {t.name: t for t in (UINT8, INT8, UINT16, INT16, INT32)}
_ACTIVATIONS, _WEIGHTS = "activation_encodings", "param_encodings"
Entry = tuple[Any, bool, Any]  # tensor, whether it is known as a parameter, its encoding


def read_scales(path: str | Path) -> FileScales:
    """Return the scales of a QDQ file or of encodings of AIMET.

    Raises:
        CalibrationError: no such file, another suffix, or no scales in it.
        FileError: it is not readable.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in READERS:
        raise CalibrationError(
            f"{path}: scales are read from files with the suffix {', '.join(READERS)}"
        )
    if not is_file(path):
        raise missing(path, CalibrationError)
    scales = READERS[suffix](str(path))
    if not scales.scales:
        raise CalibrationError(f"{path}: none of its scales is one of 8- or 16-bit integers")
    return scales


# Reads the scales of a QDQ file: of onnxruntime.quantization, NNCF, Quark and others.
#
# Each float tensor that a QuantizeLinear reads, and the one that its DequantizeLinear returns, has
# the scale: of a graph output the tools keep the name of the second. A constant that a
# DequantizeLinear reads is a weight; it is named after the layer, since the tools rename it.


def read_qdq(path: str) -> FileScales:
    """Return the scales of a QDQ file; those of biases follow from others and are left out.

    Raises:
        CalibrationError: the file has no QuantizeLinear.
        FileError: it is not readable.
    """
    model = OnnxModel.of(path)
    nodes = [n for n in model.nodes if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    if not nodes:
        raise CalibrationError(
            f"{path}: no QuantizeLinear and no DequantizeLinear in it, so it has no scales"
        )
    scales: dict[tuple[str, ...], TensorScale] = {}
    refused: dict[str, str] = {}
    for node in nodes:
        source = input_at(node, 0)
        if source is None or (node.op_type == "DequantizeLinear" and not is_constant(source)):
            continue
        for names, is_weight in _names(model, node):
            params = _params(node, names[0], refused)
            if params is None:
                continue
            same = scales.get(names)
            if same is not None and not _equal(same.params, params):
                refused[names[0]] = "it has several scales"
            values = _weights(node, params) if is_weight else None
            scales[names] = TensorScale(names, params, is_weight, values)
    wanted = tuple(s for s in scales.values() if s.names[0] not in refused)
    return FileScales(path, model.outline.producer_name or "QDQ", wanted, refused)


def _names(model: OnnxModel, node: Node) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the names of what a node quantizes, and whether it is the weight of a layer."""
    source, result = input_at(node, 0), node.outputs[0]
    stored = is_constant(source)
    readers = model.readers(result)
    if stored and node.op_type == "QuantizeLinear":  # of a float weight
        readers = [r for d in readers for r in model.readers(d.outputs[0])]
        results = {d.outputs[0] for d in model.readers(result)}
    else:
        results = {result}
    if not stored:
        behind = [name_of(r.outputs[0]) for r in readers if r.op_type == "DequantizeLinear"]
        yield (name_of(source), *behind), False
        return
    for reader in readers:
        if input_at(reader, 1) in results:
            yield (label_of(reader.message), name_of(source)), True


def _params(node: Node, name: str, refused: dict[str, str]) -> Affine | None:
    """Return the parameters of a node; None where they cannot be taken, with the reason."""
    scale, zero = (array_of(input_at(node, i)) for i in (1, 2))
    if scale is None or (zero is None and input_at(node, 2) is not None):
        refused[name] = "its scale is computed at run time"
        return None
    if zero is None:
        codes = array_of(input_at(node, 0)) if node.op_type == "DequantizeLinear" else None
        zero = np.zeros(scale.shape, np.uint8 if codes is None else codes.dtype)
    qtype = _QTYPES.get(str(zero.dtype))
    if qtype is None:
        refused[name] = f"codes of type {zero.dtype}"
    elif qtype is INT32:
        return None  # a bias
    elif scale.ndim > 1:
        refused[name] = "a scale for each block of weights"
    elif not (np.isfinite(scale) & (scale >= 0)).all():
        refused[name] = "a scale that is no positive number"
    elif scale.shape != zero.shape or not scale.size or not _one_for_each_channel(node, scale):
        refused[name] = "it has more or fewer scales than channels"
    else:
        return _affine(node, qtype, scale, zero)
    return None


def _axis(node: Node) -> int:
    return int(node.attributes.get("axis", 1))


def _one_for_each_channel(node: Node, scale: Array) -> bool:
    """Return whether a stored tensor has as many channels as scales, if it has several."""
    stored = array_of(input_at(node, 0))
    if stored is None or scale.size == 1:
        return True
    fits = -stored.ndim <= _axis(node) < stored.ndim
    return fits and bool(stored.shape[_axis(node)] == scale.size)


def _affine(node: Node, qtype: QType, scale: Array, zero: Array) -> Affine:
    stored = array_of(input_at(node, 0))
    axis = _axis(node) if scale.size > 1 else None
    if axis is not None and stored is not None:
        axis %= stored.ndim
    shape = () if axis is None else (-1,)
    scale = scale.astype(np.float32).reshape(shape)
    return Affine(qtype, scale, np.asarray(zero.astype(np.int64).reshape(shape)), axis)


def _weights(node: Node, params: Affine) -> Array | None:
    """Return the dequantized weights that a node reads as codes or as floats."""
    stored = array_of(input_at(node, 0))
    if stored is None or node.op_type == "QuantizeLinear":
        return None if stored is None else stored.astype(np.float32)
    return params.dequantize(stored)


def _equal(one: Affine, other: Affine) -> bool:
    return one.qtype is other.qtype and all(
        np.array_equal(a, b)
        for a, b in ((one.scale, other.scale), (one.zero_point, other.zero_point))
    )


# Reads the encodings of AIMET, versions 0.4 to 0.6, 1.0 and 2.x.
#
# Of version 2 a scale has the terms of QuantizeLinear; before, real = (code + offset) * scale with
# codes from 0. The names are those of the ONNX file that AIMET exports next to the encodings.


class _EncodingError(Exception):
    """Why an encoding cannot be taken."""


def read_encodings(path: str) -> FileScales:
    """Return the scales of a file of encodings.

    Raises:
        FileError: the file cannot be read.
        CalibrationError: it holds no encodings, or is damaged.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read ({error})") from error
    again = OtherFile("export the encodings again")
    try:
        document = json.loads(text)
        version = str(document.get("version", "0.4.0"))
        entries, parse = _VERSIONS[version.partition(".")[0]]
        return _scales(path, entries(document), parse)
    except json.JSONDecodeError as error:
        raise CalibrationError(f"{path}: damaged or truncated JSON ({error})", again) from error
    except MALFORMED as error:
        raise CalibrationError(
            f"{path}: no encodings of AIMET of a version from 0.4 to 2 ({error!r})", again
        ) from error


def _scales(path: str, entries: Iterator[Entry], parse: Callable[[Any], Affine]) -> FileScales:
    scales: list[TensorScale] = []
    refused: dict[str, str] = {}
    for name, is_weight, encoding in entries:
        if not isinstance(name, str):
            raise TypeError(f"the name {name!r} is no text")
        try:
            params = parse(encoding)
        except _EncodingError as why:
            refused[name] = str(why)
            continue
        if params.qtype is not INT32:  # biases follow from inputs and weights
            scales.append(TensorScale((name,), params, is_weight or params.axis is not None))
    return FileScales(path, "AIMET", tuple(scales), refused)


def _by_name(document: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the encodings of versions 0.4 to 0.6: lists, with an entry for each channel."""
    for section in (_ACTIVATIONS, _WEIGHTS):
        for name, channels in document[section].items():
            yield name, section == _WEIGHTS, channels


def _channels(channels: Any) -> Affine:
    first = channels[0]
    _check_integer(first.get("dtype", "int"))
    if not {"scale", "offset"} <= first.keys():
        raise _EncodingError("it has no scale")
    scale, offset = ([c[key] for c in channels] for key in ("scale", "offset"))
    return _from_offset(first["bitwidth"], scale, offset)


def _in_sections(document: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the encodings of version 1: two lists."""
    for section in (_ACTIVATIONS, _WEIGHTS):
        for encoding in document[section]:
            yield encoding["name"], section == _WEIGHTS, encoding


def _encoding_1(encoding: Any) -> Affine:
    _check_integer(encoding["dtype"])
    if encoding["enc_type"] not in ("PER_TENSOR", "PER_CHANNEL"):
        raise _EncodingError("a scale for each block of weights")
    return _from_offset(encoding["bw"], encoding["scale"], encoding["offset"])


def _in_one_list(document: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the encodings of version 2: one list of activations and parameters."""
    for encoding in document["encodings"]:
        yield encoding["name"], False, encoding


def _encoding_2(encoding: Any) -> Affine:
    _check_integer(encoding["output_dtype"])
    qtype = _INTEGERS.get(encoding["output_dtype"])
    if qtype is None:
        raise _EncodingError(f"codes of type {encoding['output_dtype']}")
    if "y_scale" not in encoding or encoding.get("block_size") or np.ndim(encoding["y_scale"]) > 1:
        raise _EncodingError("a scale for each block of weights")
    scale = np.asarray(encoding["y_scale"], np.float32)
    zero = encoding.get("y_zero_point")
    zeros = np.zeros(scale.shape) if zero is None else np.asarray(zero)
    axis = int(encoding.get("axis", 0)) if scale.ndim else None
    return _checked(Affine(qtype, scale, zeros.astype(np.int64).reshape(scale.shape), axis))


def _check_integer(dtype: str) -> None:
    if "int" not in dtype.lower():
        raise _EncodingError("it is a float")


def _from_offset(bits: int, scale: Any, offset: Any) -> Affine:
    """Return the parameters of versions before 2; the channels are those of the weight's layer."""
    if bits == INT32.bits:
        return Affine(INT32, np.ones((), np.float32), np.zeros((), np.int64))
    if bits not in _UNSIGNED:
        raise _EncodingError(f"codes of {bits} bits")
    one = len(scale) == 1
    shape = () if one else (-1,)
    scales = np.asarray(scale, np.float32).reshape(shape)
    zeros = -np.asarray(offset).astype(np.int64).reshape(shape)
    return _checked(Affine(_UNSIGNED[bits], scales, np.asarray(zeros), None if one else -1))


def _checked(params: Affine) -> Affine:
    if params.scale.shape != params.zero_point.shape or not (
        np.isfinite(params.scale).all() and (params.scale > 0).all()
    ):
        raise ValueError("a scale is no positive number")
    return params


_VERSIONS: Mapping[str, tuple[Callable[[Any], Iterator[Entry]], Callable[[Any], Affine]]] = {
    "0": (_by_name, _channels),
    "1": (_in_sections, _encoding_1),
    "2": (_in_one_list, _encoding_2),
}


READERS: Mapping[str, Callable[[str], FileScales]] = {
    ".onnx": read_qdq,
    ".encodings": read_encodings,
    ".json": read_encodings,
}
"""Suffix of a file -> what reads its scales."""
