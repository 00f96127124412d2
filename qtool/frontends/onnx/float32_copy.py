"""Converts an ONNX file in float16, bfloat16 or float64 to float32.

Weights, constants, casts and types are converted, in subgraphs and functions, too. Weights that
are only stored in 16 bits, and cast before they are read, are folded elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from qtool.backends.onnx.nested_graphs import all_graphs, nested_nodes
from qtool.core.summary import group_names
from qtool.frontends.onnx.constant_folding import to_array
from qtool.frontends.onnx.value_names import label_of

_HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_FLOATS = _HALVES | {TensorProto.FLOAT, TensorProto.DOUBLE}
_NAMES: Mapping[int, str] = {
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64",
}
_ANY_FLOATS = frozenset({"Cast", "Resize", "Upsample"})
"""Operators whose constants may have another type than what they compute in."""
_OLD_NAMES = {b"FLOAT16": TensorProto.FLOAT16, b"DOUBLE": TensorProto.DOUBLE}
"""Types of casts before opset 6."""
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_datatype"})
"""Attributes with the element type of a result."""
_PRECISIONS = frozenset({"stash_type", "softmax_precision"})
"""Attributes with the element type of values inside an operator."""


def types_to_convert(model: onnx.ModelProto) -> frozenset[int]:
    """Return the element types that the file computes in and qtool does not.

    They are float16 and bfloat16, and float64 in a file without float32.
    """
    graphs = list(all_graphs(model.graph))
    nodes = [*_nodes(model)]
    constants = {name: kind for node in nodes for name, kind in _constant(node)}
    for graph in graphs:
        constants |= {t.name: t.data_type for t in graph.initializer}
    computed = {kind for node in nodes for kind in _attribute_types(node)}
    computed |= {kind for graph in graphs for kind in _port_types(graph)}
    read = [n for node in nodes if node.op_type not in _ANY_FLOATS for n in node.input]
    computed |= {constants[name] for name in read if name in constants}
    only_double = computed & _FLOATS == {TensorProto.DOUBLE}
    return frozenset(computed & (_FLOATS if only_double else _HALVES))


def convert_to_float32(model: onnx.ModelProto, types: frozenset[int]) -> tuple[str, ...]:
    """Convert tensors of these types to float32, in place.

    Returns:
        A note on what was converted, with the inputs and outputs that have another type now.

    Raises:
        CaptureError: the data of a tensor does not have its stated size.
    """
    if not types:
        return ()
    casts = _casts_alone(model, types)
    stored = {t.name for t in model.graph.initializer}
    values = [v for v in (*model.graph.input, *model.graph.output) if v.name not in stored]
    changed = [v.name for v in values if v.type.tensor_type.elem_type in types]
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            _convert_tensor(tensor, types)
        for value in (*graph.input, *graph.output, *graph.value_info):
            _convert_type(value.type, types)
    for node in _nodes(model):
        for attribute in node.attribute:
            _convert_attribute(attribute, types)
    names = " and ".join(_NAMES[kind] for kind in sorted(types))
    if casts:
        text = f"{group_names(casts)} casts to {names}, which is left out: values differ"
        return (f"{text} from those of the file by its rounding",)
    ports = f", and its interface is float32 ({group_names(changed)})" if changed else ""
    return (f"the file is in {names}: a copy in float32 is quantized{ports}",)


def _casts_alone(model: onnx.ModelProto, types: frozenset[int]) -> list[str]:
    """Return the names of the Casts to these types; none if tensors or ports have them, too."""
    graphs = list(all_graphs(model.graph))
    stored = {t.data_type for graph in graphs for t in graph.initializer}
    stored |= {kind for graph in graphs for kind in _port_types(graph)}
    others = (n for n in _nodes(model) if n.op_type != "Cast")
    stored |= {kind for node in others for kind in _attribute_types(node)}
    stored |= {kind for node in _nodes(model) for _, kind in _constant(node)}
    if stored & types:
        return []
    return [label_of(n) for n in _nodes(model) if types.intersection(_attribute_types(n))]


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes, with those of subgraphs and functions."""
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        yield from nested_nodes(nodes)


def _constant(node: onnx.NodeProto) -> Iterator[tuple[str, int]]:
    """Yield name and element type of the result of a Constant."""
    if node.op_type == "Constant":
        yield from ((node.output[0], a.t.data_type) for a in node.attribute if a.HasField("t"))


def _attribute_types(node: onnx.NodeProto) -> Iterator[int]:
    """Yield the element types that the attributes of a node name or hold."""
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES:
            yield _OLD_NAMES.get(attribute.s, attribute.i)
        elif attribute.HasField("t") and node.op_type != "Constant":
            yield attribute.t.data_type


def _port_types(graph: onnx.GraphProto) -> Iterator[int]:
    stored = {t.name for t in graph.initializer}
    for value in (*graph.input, *graph.output):
        if value.name not in stored:
            yield value.type.tensor_type.elem_type


def _convert_tensor(tensor: onnx.TensorProto, types: frozenset[int]) -> None:
    if tensor.data_type in types:
        array = to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _convert_type(kind: onnx.TypeProto, types: frozenset[int]) -> None:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(kind, which)
        if tensor.elem_type in types:
            tensor.elem_type = TensorProto.FLOAT
    elif which in ("sequence_type", "optional_type"):
        _convert_type(getattr(kind, which).elem_type, types)
    elif which == "map_type":
        _convert_type(kind.map_type.value_type, types)


def _convert_attribute(attribute: onnx.AttributeProto, types: frozenset[int]) -> None:
    if attribute.name in _TYPE_ATTRIBUTES | _PRECISIONS:
        if attribute.i in types:
            attribute.i = TensorProto.FLOAT
        if _OLD_NAMES.get(attribute.s) in types:
            attribute.s = b"FLOAT"
    tensors = [attribute.t] if attribute.HasField("t") else []
    for tensor in (*tensors, *attribute.tensors):
        _convert_tensor(tensor, types)
    for kind in (*([attribute.tp] if attribute.HasField("tp") else []), *attribute.type_protos):
        _convert_type(kind, types)
