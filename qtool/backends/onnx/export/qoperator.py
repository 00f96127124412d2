"""From a QDQ model to the QOperator form: one node (QLinearConv, ...) per integer kernel.

The patterns are those of the integer engine, which are the runtime's own fusions, so that both
files run the same kernels. Nodes outside of a pattern stay: Q and DQ at the borders, float
operators between them, moves of codes. Operators of the domain com.microsoft are described in ONNX
Runtime's docs/ContribOperators.md; inputs and attributes here are in the order of their schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.graph_edits import EditedModel
from qtool.backends.onnx.operator_rows import ONNX_OPERATORS
from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnxruntime.integer_engine.fusion_patterns import (
    IntegerOperator,
    MoveOnCodes,
    match_move,
    match_operator,
)
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph

CONTRIB = "com.microsoft"
FORMAT = "qtool_format"
_MARK = {FORMAT: "qoperator"}
Values = list[ir.Value | None]


@dataclass(frozen=True)
class _Writer:
    graph: QdqGraph
    edited: EditedModel

    def codes(self, value: Value | None) -> Values:
        """Return codes, scale and zero point behind a dequantized tensor."""
        maker = None if value is None else value.producer
        assert maker is not None
        return self._with_zero(maker)

    def parameters(self, node: Node) -> Values:
        """Return scale and zero point of a Q or DQ."""
        return self._with_zero(node)[1:]

    def _with_zero(self, node: Node) -> Values:
        inputs = list(self.edited.node(node).inputs)
        if len(inputs) > 2 and inputs[2] is not None:
            return inputs
        assert inputs[1] is not None
        params, name = self.graph.params(node), f"{inputs[1].name}.zero"
        stored = self.edited.model.graph.initializers
        if name not in stored:
            zero = params.zero_point.numpy().astype(params.qtype.numpy_dtype)
            stored.add(ir.Value(name=name, const_value=ir.Tensor(zero, name=name)))
        return [*inputs[:2], stored[name]]


def is_qoperator(model: onnx.ModelProto) -> bool:
    """Return whether `to_qoperator` wrote the model."""
    return any(p.key == FORMAT and p.value == "qoperator" for p in model.metadata_props)


def to_qoperator(model: onnx.ModelProto, int8: bool = False) -> onnx.ModelProto:
    """Return the QOperator form of a QDQ model; equal in every output bit in ONNX Runtime.

    Args:
        model: as `to_onnx` writes it, or from another tool.
        int8: the runtime computes on int8 activations with any number of readers, as ONNX Runtime
            does on ARM.
    """
    file = OnnxModel.of(model)
    edited = EditedModel(file)
    writer = _Writer(QdqGraph(file, signed=int8), edited)
    for match in _matches(writer):
        _replace(edited.model.graph, writer, match)
    RemoveUnusedNodesPass()(edited.model)  # most Q and DQ are unused now
    if any(n.domain == CONTRIB for n in edited.model.graph):
        edited.model.opset_imports.setdefault(CONTRIB, 1)
    edited.model.metadata_props.update(_MARK)
    return ir.to_proto(edited.model)


def _matches(writer: _Writer) -> list[IntegerOperator | MoveOnCodes]:
    """Return what is written as one node, in the order of the graph."""
    absorbed: set[Node] = set()
    matches: list[IntegerOperator | MoveOnCodes] = []
    for node in writer.graph.model.nodes:
        if node in absorbed:
            continue
        operator = match_operator(writer.graph, node)
        if operator is not None and _writable(writer, operator):
            absorbed |= set(operator.absorbed)
            matches.append(operator)
        elif (move := match_move(writer.graph, node)) is not None:
            absorbed.add(move.quantizer)
            matches.append(move)
    return matches


def _replace(graph: ir.Graph, writer: _Writer, match: IntegerOperator | MoveOnCodes) -> None:
    """Put one node in the place of an operator and its quantization."""
    node = match.node
    if isinstance(match, IntegerOperator):
        new, last = _WRITERS[node.op_type](writer, match), match.quantizer or node
    else:
        inputs = [*writer.codes(node.inputs[0])[:1], *writer.edited.node(node).inputs[1:]]
        new, last = _copy(writer, node, inputs), match.quantizer
    new.name = node.name
    old, output = writer.edited.node(last).outputs[0], new.outputs[0]
    output.name, output.type, output.shape = old.name, old.type, old.shape
    graph.insert_before(writer.edited.node(node), new)
    old.replace_all_uses_with(output, replace_graph_outputs=True)


def _writable(writer: _Writer, match: IntegerOperator) -> bool:
    """Return whether the operators support it: a bias stored as codes, a pool without dilation."""
    if match.node.op_type not in _WRITERS:
        return False
    if "dilations" in match.node.attributes and match.node.op_type == "AveragePool":
        return False
    if not match.operator.weight or len(match.node.inputs) < 3:
        return True
    bias = writer.graph.codes(match.node.inputs[2])
    return bias is not None and bias.constant is not None


def _node(op: str, inputs: Values, domain: str = CONTRIB, **attributes: Any) -> ir.Node:
    return ir.node(op, inputs, attributes, domain=domain)


def _copy(writer: _Writer, node: Node, inputs: Values) -> ir.Node:
    attributes = list(writer.edited.node(node).attributes.values())
    return ir.Node(node.domain, node.op_type, inputs, attributes)


def _out(writer: _Writer, match: IntegerOperator) -> Values:
    return [] if match.quantizer is None else writer.parameters(match.quantizer)


def _conv(writer: _Writer, match: IntegerOperator) -> ir.Node:
    x, weight, *bias = match.node.inputs
    inputs = [*writer.codes(x), *writer.codes(weight), *_out(writer, match)]
    inputs += [writer.codes(b)[0] for b in bias]
    return _node("QLinearConv", inputs, "", **match.node.attributes)


def _gemm(writer: _Writer, match: IntegerOperator) -> ir.Node:
    x, weight, *bias = match.node.inputs
    inputs = [*writer.codes(x), *writer.codes(weight)]
    inputs += [writer.codes(b)[0] for b in bias] or [None]
    transposed = int(match.node.attributes.get("transB", 0))
    inputs += _out(writer, match)
    return _node("QGemm", inputs, alpha=1.0, transA=0, transB=transposed)


def _matmul(writer: _Writer, match: IntegerOperator) -> ir.Node:
    a, b = (writer.codes(value) for value in match.node.inputs)
    if match.quantizer is None:
        return _node("MatMulIntegerToFloat", [a[0], b[0], a[1], b[1], a[2], b[2]])
    return _node("QLinearMatMul", [*a, *b, *_out(writer, match)], "")


def _plain(op: str, *names: str, **fixed: Any) -> Callable[[_Writer, IntegerOperator], ir.Node]:
    """Return the writer of an operator of codes alone, which has these attributes of the node."""

    def write(writer: _Writer, match: IntegerOperator) -> ir.Node:
        known = match.node.attributes
        attributes = {name: known[name] for name in names if name in known}
        inputs = [*_data(writer, match), *_out(writer, match)]
        return _node(op, inputs, **attributes, **fixed)

    return write


def _data(writer: _Writer, match: IntegerOperator) -> Values:
    """Return codes, scale and zero point of each input."""
    return [part for value in match.node.inputs for part in writer.codes(value)]


def _concat(writer: _Writer, match: IntegerOperator) -> ir.Node:
    inputs = [*_out(writer, match), *_data(writer, match)]
    return _node("QLinearConcat", inputs, axis=match.node.attributes["axis"])


def _max_pool(writer: _Writer, match: IntegerOperator) -> ir.Node:
    """Return a MaxPool, which takes codes itself."""
    return _copy(writer, match.node, writer.codes(match.node.inputs[0])[:1])


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

_WRITERS: Mapping[str, Callable[[_Writer, IntegerOperator], ir.Node]] = {
    **{
        kind: _plain(row.on_codes, *row.attributes)
        for kind, row in ONNX_OPERATORS.items()
        if row.plain
    },
    "AveragePool": _plain("QLinearAveragePool", *_POOL, channels_last=0),
    "Concat": _concat,
    "Conv": _conv,
    "Gemm": _gemm,
    "GlobalAveragePool": _plain("QLinearGlobalAveragePool", channels_last=0),
    "MatMul": _matmul,
    "MaxPool": _max_pool,
}
