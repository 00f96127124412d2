"""Reads the scales of a QDQ file: of onnxruntime.quantization, NNCF, Quark and others.

Each float tensor that a QuantizeLinear reads, and the one that its DequantizeLinear returns, has
the scale: of a graph output the tools keep the name of the second. A constant that a
DequantizeLinear reads is a weight; it is named after the layer, since the tools rename it.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from qtool.core.errors import CalibrationError
from qtool.core.types import INT8, INT16, INT32, UINT8, UINT16, Array, QType
from qtool.frontends.onnx.value_names import label_of
from qtool.plugins.scales.record import FileScales, TensorScale

_QTYPES = {t.dtype: t for t in (UINT8, INT8, UINT16, INT16, INT32)}


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
