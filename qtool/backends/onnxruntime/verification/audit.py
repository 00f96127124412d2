"""Audit of what ONNX Runtime really runs in integer kernels.

The graph optimised by ONNX Runtime is read back, and every convolution, matrix product, add, concat
and pool of the file is looked up in it. The runtime keeps node names when it fuses (with a suffix);
otherwise a node is found by the tensor that it computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qtool.backends.onnx.file_info import FileInfo
from qtool.backends.onnx.mac_counts import MAC_FORMULAS, WEIGHT_INPUT
from qtool.backends.onnx.reading import (
    OnnxModel,
    attributes_of,
    graph_of,
    input_at,
    is_constant,
    name_of,
)
from qtool.backends.onnxruntime.session import RUNTIME, without_suffix
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.inferred_shapes import InferredShapes
from qtool.core import value_names
from qtool.verification.coverage import AuditRow, Coverage


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


AUDITED = _names(
    "Conv ConvTranspose Gemm MatMul MatMulNBits Add Mul Concat AveragePool MaxPool"
    " GlobalAveragePool GlobalMaxPool Einsum LSTM GRU RNN DynamicQuantizeLSTM"
)
INTEGER = _names(
    "QLinearConv QGemm QLinearMatMul MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul"
    " ConvInteger DynamicQuantizeLSTM"
    " QLinearAdd QLinearMul QLinearConcat QLinearAveragePool QLinearGlobalAveragePool"
    " QLinearSigmoid QLinearLeakyRelu QLinearSoftmax QLinearWhere"
)
_CODES_OR_FLOATS = _names(  # operators that exist for codes and for floats
    "MaxPool NhwcMaxPool Transpose Reshape Slice Pad Concat Squeeze Unsqueeze Flatten Split Gather"
    " Expand Resize DepthToSpace Tile Identity"
)
_WEIGHT_ONLY = _names("MatMulNBits")  # integer weights, float inputs and results
_FAST_LEVEL = 4  # accuracy_level: inputs are rounded to int8 in blocks, products are integer
_FUSES_AFFINE = _names("DynamicQuantizeMatMul MatMulIntegerToFloat MatMulNBits")  # scale, bias
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_LAYOUT = ("ReorderOutput", "Transpose")  # added by the runtime after a kernel
_MOST_FOLLOWERS = 8


def audit(file: ExportedFile | str | Path) -> Coverage:
    """Return the integer coverage of an ONNX file, made by qtool or not.

    Raises:
        FileError: not an ONNX file.
        VerificationError: the runtime does not load it.
    """
    exported = ExportedFile.of(file)
    source, executed = exported.file, _ExecutedGraph(graph_of(exported.executed_graph))
    shapes, plan = InferredShapes(source.outline), _stored_plan(source)
    audited = [
        (node, _planned_name(node, plan))
        for node in source.nodes
        if node.op_type in INTEGER
        or _is_custom(node)
        or (node.op_type in AUDITED and shapes.is_data(node.outputs[0]))
    ]
    parts = Counter(name for node, name in audited if node.op_type in MAC_FORMULAS)
    rows = (
        _row(node, name, parts[name], source, executed, shapes, plan.get(name, {}))
        for node, name in audited
        if node.op_type in MAC_FORMULAS or not (name in plan and parts[name])
    )
    return Coverage(RUNTIME, tuple(r for r in rows if r is not None))


def _planned_name(node: ir.Node, plan: Mapping[str, Any]) -> str:
    """Return the name of the planned operator that a node is a part of, or its own name."""
    own = str(node.name)
    name = value_names.operator_of(own, node.op_type)
    return name if name in plan else own


def _row(
    node: ir.Node,
    name: str,
    parts: int,
    source: OnnxModel,
    executed: _ExecutedGraph,
    shapes: InferredShapes,
    planned: Mapping[str, Any],
) -> AuditRow | None:
    """Return the row of a node; None if it is fused into a matrix product, which has a row.

    Args:
        node: the node.
        name: name of its row.
        parts: number of nodes with MACs that the operator is written as; they share its MACs.
        source: the file.
        executed: the graph that the runtime executes.
        shapes: shapes of the file.
        planned: what the plan in the file says of the operator; empty for none.
    """
    kernel_node = executed.find(node, source)
    kernel = kernel_node.op_type if kernel_node is not None else "folded away"
    form = planned.get("form")
    if _is_custom(node):  # the runtime runs its function
        reason = planned.get("reason", f"an operator of the domain {node.domain}")
        macs, weights = int(planned.get("macs", 0)), form == "weights"
        return AuditRow(name, node.op_type, node.domain, False, macs, reason, weights)
    if node.op_type in ("Add", "Mul") and kernel in _FUSES_AFFINE:
        return None
    # fused into another kernel: a convolution counts as integer only if the plan quantizes it
    fused = bool(planned) or node.op_type not in WEIGHT_INPUT
    integer = fused if kernel_node is None else _is_integer(kernel_node)
    if form == "weights" or (form == "float" and node.name not in executed.nodes):
        integer = False  # `find` returned a reader of the node, not the node
    macs = int(planned["macs"]) // max(parts, 1) if planned else shapes.macs(node)
    reason = "" if integer else planned.get("reason") or _why_float(node, source)
    if kernel_node is not None and kernel in _WEIGHT_ONLY:
        reason = _slow_level(kernel_node) or reason
    weights = kernel in _WEIGHT_ONLY or form == "weights"
    return AuditRow(name, node.op_type, kernel, integer, macs, reason, weights)


def _is_custom(node: ir.Node) -> bool:
    """Return whether an operator belongs neither to ONNX nor to the runtime."""
    return node.domain not in _DOMAINS


def _stored_plan(source: OnnxModel) -> dict[str, Mapping[str, Any]]:
    """Return the plan stored in a file of qtool, by node; empty for other files."""
    info = FileInfo.of(source.outline)
    return {} if info is None else {n.node: vars(n) for n in info.nodes}


def _why_float(node: ir.Node, source: OnnxModel) -> str:
    """Return what is not quantized around a node, for a file without a plan."""
    for value in node.inputs[:2]:
        maker = None if value is None else value.producer()
        if is_constant(value) and node.op_type in WEIGHT_INPUT:
            return f"its weight {name_of(value)} is stored as float"
        if not is_constant(value) and (maker is None or maker.op_type != "DequantizeLinear"):
            return f"its input {name_of(value)} is not quantized"
    readers = {n.op_type for n in source.readers(node.outputs[0])}
    if not readers & {"QuantizeLinear", "Relu", "Clip"}:
        return "its output is not quantized"
    return f"{RUNTIME} has no integer kernel for this form"


def _slow_level(node: ir.Node) -> str:
    """Return why a MatMulNBits is slow: most tools leave accuracy_level at its default."""
    level = attributes_of(node).get("accuracy_level", 0)
    if level == _FAST_LEVEL:
        return ""
    return (
        f"accuracy_level {level} converts its weights to float in every call, which may be slower "
        f"than the float model; set accuracy_level = {_FAST_LEVEL}"
    )


class _ExecutedGraph:
    """The optimised graph, with look-ups by the names of the file."""

    def __init__(self, graph: ir.Graph) -> None:
        self.nodes = {without_suffix(n.name): n for n in graph if n.name}
        self.by_output = {without_suffix(name_of(o)): n for n in graph for o in n.outputs}

    def find(self, node: ir.Node, source: OnnxModel) -> ir.Node | None:
        """Return the node that computes `node`: by name, else by its output or a follower's."""
        if node.name in self.nodes:
            return self.nodes[node.name]
        value = node.outputs[0]
        for _ in range(_MOST_FOLLOWERS):
            if (name := name_of(value)) in self.by_output:
                return _skip_layout(self.by_output[name])
            readers = source.readers(value)
            if len(readers) != 1:
                return None
            value = readers[0].outputs[0]
        return None


def _skip_layout(node: ir.Node) -> ir.Node:
    """Return the node whose result `node` only converts to another layout."""
    source = input_at(node, 0)
    while node.op_type in _LAYOUT and source is not None and (maker := source.producer()):
        node, source = maker, input_at(maker, 0)
    return node


def _is_integer(node: ir.Node) -> bool:
    if node.op_type in INTEGER:
        return True
    return node.op_type in _CODES_OR_FLOATS and _in_codes(input_at(node, 0))


def _in_codes(value: ir.Value | None) -> bool:
    maker = None if value is None else value.producer()
    if value is None or maker is None:
        return value is not None and value.dtype in (ir.DataType.UINT8, ir.DataType.INT8)
    if maker.op_type in _CODES_OR_FLOATS:
        return _in_codes(input_at(maker, 0))
    return maker.op_type == "QuantizeLinear" or maker.op_type.startswith("QLinear")
