"""Types and values of results that the shape inference of onnx lacks: those of ONNX Runtime's own
operators, and sizes that a file computes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from qtool.backends.onnx.mac_counts import CONTRIB
from qtool.backends.onnx.operator_rows import ON_CODES, ONNX_OPERATORS
from qtool.core.types import Array

Types = Mapping[str, onnx.TypeProto]

_STANDARD: Mapping[str, tuple[str, Sequence[int]]] = {
    **{
        on_codes: (kind, range(0, 3 * codes, 3))  # each with scale, zero point
        for on_codes, kind in ON_CODES.items()
        for codes in [ONNX_OPERATORS[kind].codes]
        if codes is not None
    },
    "QLinearWhere": ("Where", (0, 1, 4)),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul"), ("MatMul", (0, 1))),
    "FusedConv": ("Conv", (0, 1)),
    "FusedGemm": ("Gemm", (0, 1)),
}
"""Operator type -> (type of ONNX with a result of the same sizes, positions of its inputs)."""

_LIKE_INPUT = re.compile(
    "Gelu|Swish|Rotary|SkipLayer|SkipSimplified|SimplifiedLayer|Attention$|MoE$"
)
_SUM = 3  # output of SkipLayerNormalization and its kind: the sum that is normalized
_SIMPLE_NORM = "SimplifiedLayerNormalization"  # of the runtime, in the domain of ONNX
_OPSET = 17


def runtime_types(node: onnx.NodeProto, types: Types) -> Types:
    """Return the types of a node's results of ONNX Runtime's domain; empty if not known.

    Args:
        node: the node.
        types: types of its inputs.
    """
    first = types.get(node.input[0]) if node.input else None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if not (node.domain == CONTRIB or node.op_type == _SIMPLE_NORM) or not node.output:
        return {}
    if node.op_type == "MatMulNBits" and first is not None:
        return {node.output[0]: _with_last(first, attributes["N"])}
    if node.op_type == "GatherBlockQuantized":
        return _rows_of_blocks(node, types, attributes.get("bits", 4))
    if node.op_type == "GroupQueryAttention" and first is not None and not node.input[1]:
        heads, own = attributes["num_heads"], attributes["kv_num_heads"]
        width = first.tensor_type.shape.dim[-1].dim_value * heads // (heads + 2 * own)
        return {node.output[0]: _with_last(first, width)}
    if node.op_type in _STANDARD or node.op_type == "QLinearConcat":
        return _standard(node, types)
    if _LIKE_INPUT.search(node.op_type) and first is not None:
        sums = node.output[_SUM : _SUM + 1] if "Skip" in node.op_type else ()
        return dict.fromkeys((node.output[0], *sums), first)
    return {}


def _with_last(kind: onnx.TypeProto, size: int) -> onnx.TypeProto:
    """Return a type with another last dimension."""
    result = onnx.TypeProto()
    result.CopyFrom(kind)
    for last in result.tensor_type.shape.dim[-1:]:
        last.dim_value = size
    return result


def _rows_of_blocks(node: onnx.NodeProto, types: Types, bits: int) -> Types:
    """Return the type of rows of a table in blocks, whose bytes have several codes each."""
    table, ids, scales = (types.get(name) for name in node.input[:3])
    if table is None or ids is None or scales is None:
        return {}
    rows, last = onnx.TypeProto(), table.tensor_type.shape.dim[-1].dim_value
    rows.CopyFrom(ids)
    rows.tensor_type.elem_type = scales.tensor_type.elem_type
    is_packed = table.tensor_type.elem_type == onnx.TensorProto.UINT8
    rows.tensor_type.shape.dim.add().dim_value = last * (8 // bits if is_packed else 1)
    return {node.output[0]: rows}


def _standard(node: onnx.NodeProto, types: Types) -> Types:
    kind, places = _STANDARD.get(node.op_type, ("Concat", range(2, len(node.input), 3)))
    names = [node.input[i] for i in places if i < len(node.input)]
    schema = onnx.defs.get_schema(kind, _OPSET)
    plain = helper.make_node(kind, names, node.output[:1])
    plain.attribute.extend(a for a in node.attribute if a.name in schema.attributes)
    return inferred_types(plain, types, {}, _OPSET, element=onnx.TensorProto.FLOAT)


def inferred_types(
    node: onnx.NodeProto,
    types: Types,
    constants: Mapping[str, Array],
    opset: int,
    element: int | None = None,
) -> Types:
    """Return the types of a node's results that onnx infers; empty where it cannot.

    Args:
        node: node of the domain of ONNX.
        types: types of its inputs.
        constants: values of those that are known.
        opset: version of the domain.
        element: type of the elements of all inputs, in place of their own.
    """
    own = {}
    for name in filter(None, node.input):
        if name not in types:
            return {}
        own[name] = onnx.TypeProto()
        own[name].CopyFrom(types[name])
        if element is not None:
            own[name].tensor_type.elem_type = element
    data = {n: onnx.numpy_helper.from_array(constants[n], n) for n in own if n in constants}
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        return dict(
            onnx.shape_inference.infer_node_outputs(
                schema, node, own, data, opset_imports=[helper.make_opsetid("", opset)]
            )
        )
    except Exception:  # noqa: BLE001  # sizes contradict each other, or depend on values
        return {}


_OF_SIZES = frozenset(
    [
        "Add",
        "Cast",
        "Ceil",
        "Concat",
        "ConstantOfShape",
        "Div",
        "Equal",
        "Floor",
        "Gather",
        "Identity",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Range",
        "ReduceProd",
        "Reshape",
        "Slice",
        "Squeeze",
        "Sub",
        "Unsqueeze",
        "Where",
    ]
)
"""Operators that files compute sizes with."""


def constant_results(
    node: onnx.NodeProto,
    constants: Mapping[str, Array],
    sizes: Sequence[int] | None,
    opset: int,
    most: int,
) -> Mapping[str, Array]:
    """Return the values of a node's results that follow from sizes and constants.

    Args:
        node: the node.
        constants: known values of tensors.
        sizes: shape of its first input; None: not known.
        opset: version of the domain.
        most: elements of a result.
    """
    if node.op_type == "Shape" and sizes is not None:
        ends = {a.name: a.i for a in node.attribute}
        part = sizes[ends.get("start", 0) : ends.get("end", len(sizes))]
        return {node.output[0]: np.array(part, np.int64)}
    inputs = [name for name in node.input if name]
    if node.op_type not in _OF_SIZES or not all(name in constants for name in inputs):
        return {}
    graph = onnx.GraphProto(name="g", node=[node])
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(inputs))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        results = ReferenceEvaluator(model).run(None, {n: constants[n] for n in inputs})
    except Exception:  # noqa: BLE001  # a form that the evaluator has not
        return {}
    arrays = {n: np.asarray(a) for n, a in zip(node.output, results, strict=True)}
    return {name: array for name, array in arrays.items() if array.size <= most}
