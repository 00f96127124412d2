"""Audit of what ONNX Runtime really runs in integer kernels.

The graph optimised by ONNX Runtime is read back, and every operator of the file that computes is
looked up in it. The runtime keeps node names when it fuses (with a suffix);
otherwise a node is found by the tensor that it computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx

from qtool.backends.onnx.file_info import FileInfo, NodeInfo
from qtool.backends.onnx.graph import Graph, Node, Value
from qtool.backends.onnx.graph_macs import GraphMacs
from qtool.backends.onnx.mac_counts import DOMAINS, MAC_FORMULAS, WEIGHT_INPUT
from qtool.backends.onnx.operator_rows import MOVES, ON_CODES
from qtool.backends.onnx.reading import (
    OnnxModel,
    graph_of,
    input_at,
    is_constant,
    name_of,
)
from qtool.backends.onnxruntime.executed_file import ExecutedFile
from qtool.backends.onnxruntime.session import RUNTIME, without_suffix
from qtool.core import value_names
from qtool.core.operator_kinds import is_move
from qtool.planning.plan import Execution
from qtool.verification.coverage import AuditRow, Coverage, is_audited, runs_on_codes

_DATA = frozenset((
    onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.UINT8, onnx.TensorProto.INT8,
))  # fmt: skip


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


AUDITED = _names(
    "Conv ConvTranspose Gemm MatMul MatMulNBits QMoE Add Mul Concat AveragePool MaxPool"
    " GlobalAveragePool GlobalMaxPool Einsum LSTM GRU RNN DynamicQuantizeLSTM"
)
INTEGER = frozenset(ON_CODES) | _names(
    "MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul ConvInteger DynamicQuantizeLSTM"
)
_CODES_OR_FLOATS = MOVES | _names("MaxPool NhwcMaxPool Pad Concat Split")
_WEIGHT_ONLY = _names("MatMulNBits QMoE")  # integer weights, float inputs and results
_FAST_LEVEL = 4  # accuracy_level: inputs are rounded to int8 in blocks, products are integer
_FUSES_AFFINE = _names("DynamicQuantizeMatMul MatMulIntegerToFloat MatMulNBits")  # scale, bias
_EXECUTIONS = {e.value: e for e in Execution}
_LAYOUT = ("ReorderOutput", "Transpose")  # added by the runtime after a kernel
_NCHWC = "com.microsoft.nchwc"
_MOST_FOLLOWERS = 8


def audit(file: ExecutedFile | str | Path) -> Coverage:
    """Return the integer coverage of an ONNX file, made by qtool or not.

    A file of qtool has a row for each operator of its plan, whatever nodes it is written as; any
    other file has one for each node that computes.

    Raises:
        FileError: not an ONNX file.
        VerificationError: the runtime does not load it.
    """
    exported = ExecutedFile.of(file)
    source, executed = exported.file, _ExecutedGraph(graph_of(exported.executed_graph))
    info = FileInfo.of(source.outline)
    rows = _node_rows(source, executed) if info is None else _plan_rows(info, source, executed)
    return Coverage(RUNTIME, tuple(rows))


def _plan_rows(info: FileInfo, source: OnnxModel, executed: _ExecutedGraph) -> Iterator[AuditRow]:
    """Yield a row for each operator of the plan in a file; a float operator that is a step of
    another one's node, and does no products, has none."""
    known = {n.node for n in info.nodes}
    nodes: dict[str, list[Node]] = {}
    for node in source.nodes:
        own = str(node.name)
        name = value_names.operator_of(own, node.op_type)
        for layer in [name] if name in known else value_names.layers_of_joint(own, known):
            nodes.setdefault(layer, []).append(node)
    for planned in info.nodes:
        execution = _EXECUTIONS.get(planned.form, Execution.SHAPE)
        works = planned.macs > 0 or not planned.macs_known
        if is_audited(planned.op, execution, works):
            parts = _main_nodes(planned.node, nodes.get(planned.node, []))
            if parts or works or execution is not Execution.FLOAT:
                yield _planned_row(planned, execution, parts, source, executed)


def _main_nodes(name: str, nodes: Sequence[Node]) -> Sequence[Node]:
    """Return the nodes of an operator that stand for it: those with MACs, else the last."""
    work = [n for n in nodes if n.op_type in MAC_FORMULAS or _is_custom(n)]
    return work or [n for n in nodes if n.name == name][:1] or nodes[-1:]


def _planned_row(
    planned: NodeInfo,
    execution: Execution,
    nodes: Sequence[Node],
    source: OnnxModel,
    executed: _ExecutedGraph,
) -> AuditRow:
    """Return the row of an operator of the plan.

    Args:
        planned: what the plan in the file says of it.
        execution: how it is planned to run.
        nodes: those that compute it; empty if it is part of another operator's nodes.
        source: the file.
        executed: the graph that the runtime executes.
    """
    kernels = [None if _is_custom(n) else executed.find(n, source) for n in nodes]
    names = [
        node.domain if _is_custom(node) else "folded away" if kernel is None else kernel.op_type
        for node, kernel in zip(nodes, kernels, strict=True)
    ]
    integer = runs_on_codes(execution) or execution is Execution.FLOAT
    integer &= all(k is None or _is_integer(k) for k in kernels)
    if execution is Execution.FLOAT:  # `find` may return a reader of the node, not the node
        integer &= any(n.name in executed.nodes and not _is_custom(n) for n in nodes)
    reason = "" if integer else planned.reason or (_why_float(nodes[0], source) if nodes else "")
    slow = [_slow_level(k) for k in kernels if k is not None and k.op_type in _WEIGHT_ONLY]
    return AuditRow(
        planned.node,
        "+".join(dict.fromkeys(n.op_type for n in nodes)) or planned.op,
        "+".join(dict.fromkeys(names)) or "part of another kernel",
        integer,
        planned.macs,
        next(filter(None, slow), reason),
        execution is Execution.WEIGHTS,
        planned.macs_known,
    )


def _node_rows(source: OnnxModel, executed: _ExecutedGraph) -> Iterator[AuditRow]:
    """Yield a row for each node that computes, of a file without a plan."""
    shapes = _InferredShapes(source.outline)
    for node in source.nodes:
        count = shapes.macs(node)
        listed = node.op_type in INTEGER or _is_custom(node) or count != 0
        data = bool(node.outputs) and shapes.is_data(node.outputs[0])
        if not listed and node.op_type in AUDITED:
            listed = data
        elif not listed and data and not is_move(node.op_type):  # not fused into another kernel
            listed = node.name in executed.nodes
        row = _node_row(node, count, source, executed) if listed else None
        if row is not None:
            yield row


def _node_row(
    node: Node, count: int | None, source: OnnxModel, executed: _ExecutedGraph
) -> AuditRow | None:
    """Return the row of a node; None if it is fused into a matrix product, which has a row."""
    name, known = str(node.name), count is not None
    if _is_custom(node):  # the runtime runs its function
        reason = f"an operator of the domain {node.domain}"
        return AuditRow(name, node.op_type, node.domain, False, 0, reason, macs_known=known)
    kernel_node = executed.find(node, source)
    kernel = "folded away" if kernel_node is None else kernel_node.op_type
    if node.op_type in ("Add", "Mul") and kernel in _FUSES_AFFINE:
        return None
    # fused into another kernel: a convolution counts as integer only if the plan quantizes it
    integer = node.op_type not in WEIGHT_INPUT if kernel_node is None else _is_integer(kernel_node)
    reason = "" if integer else _why_float(node, source)
    weights = kernel in _WEIGHT_ONLY
    if kernel_node is not None and weights:
        reason = _slow_level(kernel_node) or "its weights alone are quantized"
    return AuditRow(name, node.op_type, kernel, integer, count or 0, reason, weights, known)


def _is_custom(node: Node) -> bool:
    """Return whether an operator belongs neither to ONNX nor to the runtime."""
    return node.domain not in DOMAINS


def _why_float(node: Node, source: OnnxModel) -> str:
    """Return what is not quantized around a node, for a file without a plan."""
    for value in node.inputs[:2]:
        maker = None if value is None else value.producer
        if is_constant(value) and node.op_type in WEIGHT_INPUT:
            return f"its weight {name_of(value)} is stored as float"
        if not is_constant(value) and (maker is None or maker.op_type != "DequantizeLinear"):
            return f"its input {name_of(value)} is not quantized"
    readers = {n.op_type for n in source.readers(node.outputs[0])}
    if not readers & {"QuantizeLinear", "Relu", "Clip"}:
        return "its output is not quantized"
    return f"{RUNTIME} has no integer kernel for this form"


def _slow_level(node: Node) -> str:
    """Return why a MatMulNBits is slow: most tools leave accuracy_level at its default."""
    if node.op_type != "MatMulNBits":
        return ""
    level = node.attributes.get("accuracy_level", 0)
    if level == _FAST_LEVEL:
        return ""
    return (
        f"accuracy_level {level} converts its weights to float in every call, which may be slower "
        f"than the float model; set accuracy_level = {_FAST_LEVEL}"
    )


class _ExecutedGraph:
    """The optimised graph, with look-ups by the names of the file."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = {without_suffix(n.name): n for n in graph if n.name}
        self.by_output = {without_suffix(name_of(o)): n for n in graph for o in n.outputs}
        # a node in blocks of channels is named after the result that it makes in another layout
        self.by_output |= {without_suffix(n.name): n for n in graph if n.domain == _NCHWC}

    def find(self, node: Node, source: OnnxModel) -> Node | None:
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


def _skip_layout(node: Node) -> Node:
    """Return the node whose result `node` only converts to another layout."""
    source = input_at(node, 0)
    while node.op_type in _LAYOUT and source is not None and (maker := source.producer):
        node, source = maker, input_at(maker, 0)
    return node


def _is_integer(node: Node) -> bool:
    if node.op_type in INTEGER:
        return True
    return node.op_type in _CODES_OR_FLOATS and _in_codes(input_at(node, 0))


def _in_codes(value: Value | None) -> bool:
    maker = None if value is None else value.producer
    if value is None or maker is None:
        return value is not None and value.dtype in (np.uint8, np.int8)
    if maker.op_type in _CODES_OR_FLOATS:
        return _in_codes(input_at(maker, 0))
    return maker.op_type == "QuantizeLinear" or maker.op_type.startswith("QLinear")


class _InferredShapes:
    """Types and MACs of the tensors and nodes of a file; a dynamic dimension counts as 1."""

    def __init__(self, model: onnx.ModelProto) -> None:
        fixed = _one_sample(model)
        types = {i.name: i.type for i in fixed.graph.input}
        self._counts = GraphMacs(fixed.graph, fixed.opset_import, types, {})
        self._nodes = {n.output[0]: n for n in fixed.graph.node if n.output}
        stored = {t.name for t in fixed.graph.initializer}
        first = next((i.name for i in fixed.graph.input if i.name not in stored), "")
        sizes = self._counts.sizes(first)
        self.samples = sizes[0] if sizes else 1

    def is_data(self, value: Value) -> bool:
        """Return whether a value holds floats or codes, not sizes and indices."""
        kind = self._counts.types.get(name_of(value))
        return kind is None or not kind.tensor_type.elem_type or kind.tensor_type.elem_type in _DATA

    def macs(self, node: Node) -> int | None:
        """Return the MACs of a node for one sample; None if they are not known."""
        own = self._nodes.get(name_of(node.outputs[0])) if node.outputs else None
        count = None if own is None else self._counts.of(own)
        return None if count is None else count // max(1, self.samples)


def _one_sample(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with dynamic dimensions of 1, so that sizes computed from them are inferred."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.value_info[:]
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in fixed.graph.input:
        for size in value.type.tensor_type.shape.dim:
            size.dim_value = size.dim_value or 1
    return fixed
