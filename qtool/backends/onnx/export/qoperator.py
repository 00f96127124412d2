"""From a QDQ model to the QOperator form: QLinearConv and its kin, one node per integer kernel.

The patterns are those of the integer engine, which are the runtime's own fusions, so that both
files run the same kernels. What stands in no pattern stays as it is: the Q and DQ at the borders,
operators in float between them, elements moved on codes. Operators of the domain com.microsoft
are described in ONNX Runtime's docs/ContribOperators.md; inputs and attributes here are in the
order of their schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from qtool.backends.onnx.reading import OnnxModel, attributes_of
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

    def codes(self, value: ir.Value | None) -> Values:
        """Codes, scale and zero point behind a dequantized tensor."""
        maker = None if value is None else value.producer()
        assert maker is not None
        return self._with_zero(maker)

    def parameters(self, node: ir.Node) -> Values:
        """Scale and zero point of a Q or DQ."""
        return self._with_zero(node)[1:]

    def _with_zero(self, node: ir.Node) -> Values:
        found = list(node.inputs)
        if len(found) > 2 and found[2] is not None:
            return found
        assert found[1] is not None
        params, name = self.graph.params(node), f"{found[1].name}.zero"
        stored = self.graph.model.model.graph.initializers
        if name not in stored:
            zero = params.zero_point.numpy().astype(params.qtype.numpy_dtype)
            stored.add(ir.Value(name=name, const_value=ir.Tensor(zero, name=name)))
        return [*found[:2], stored[name]]


def is_qoperator(model: onnx.ModelProto) -> bool:
    """Whether `to_qoperator` made the model."""
    return any(p.key == FORMAT and p.value == "qoperator" for p in model.metadata_props)


def to_qoperator(model: onnx.ModelProto, int8: bool = False) -> onnx.ModelProto:
    """The QOperator form of a QDQ model; equal in every output bit when run in ONNX Runtime.

    Args:
        model: as `to_onnx` writes it, or from elsewhere.
        int8: the file is for a runtime that computes on int8 activations however many nodes read
            them, as ONNX Runtime does on ARM.
    """
    file = OnnxModel.of(model)
    writer = _Writer(QdqGraph(file, signed=int8))
    for found in _matches(
        writer
    ):  # all of them before the first is replaced: patterns count readers
        _replace(file.model.graph, writer, found)
    RemoveUnusedNodesPass()(file.model)  # most Q and DQ are part of a node now
    if any(n.domain == CONTRIB for n in file.nodes):
        file.model.opset_imports.setdefault(CONTRIB, 1)
    file.model.metadata_props.update(_MARK)
    return ir.to_proto(file.model)


def _matches(writer: _Writer) -> list[IntegerOperator | MoveOnCodes]:
    """What is written as one node, in the order of the graph."""
    done: set[ir.Node] = set()
    found: list[IntegerOperator | MoveOnCodes] = []
    for node in writer.graph.model.nodes:
        if node in done:
            continue
        if (whole := match_operator(writer.graph, node)) is not None and _writable(writer, whole):
            done |= set(whole.absorbed)
            found.append(whole)
        elif (move := match_move(writer.graph, node)) is not None:
            done.add(move.quantizer)
            found.append(move)
    return found


def _replace(graph: ir.Graph, writer: _Writer, found: IntegerOperator | MoveOnCodes) -> None:
    """Puts one node in the place of an operator and what quantizes its result."""
    node = found.node
    if isinstance(found, IntegerOperator):
        new, last = _WRITERS[node.op_type](writer, found), found.quantizer or node
    else:
        new, last = (
            _copy(node, [*writer.codes(node.inputs[0])[:1], *node.inputs[1:]]),
            found.quantizer,
        )
    new.name = node.name
    old, made = last.outputs[0], new.outputs[0]
    made.name, made.type, made.shape = old.name, old.type, old.shape
    graph.insert_before(node, new)
    old.replace_all_uses_with(made, replace_graph_outputs=True)


def _writable(writer: _Writer, found: IntegerOperator) -> bool:
    """A bias has to be stored as codes, and a pool without holes: the operators take no other."""
    if found.node.op_type not in _WRITERS:
        return False
    if "dilations" in found.node.attributes and found.node.op_type == "AveragePool":
        return False
    if not found.operator.weight or len(found.node.inputs) < 3:
        return True
    bias = writer.graph.codes(found.node.inputs[2])
    return bias is not None and bias.constant is not None


def _made(op: str, inputs: Values, domain: str = CONTRIB, **attributes: Any) -> ir.Node:
    return ir.node(op, inputs, attributes, domain=domain)


def _copy(node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Node:
    return ir.Node(node.domain, node.op_type, inputs, list(node.attributes.values()))


def _out(writer: _Writer, found: IntegerOperator) -> Values:
    return [] if found.quantizer is None else writer.parameters(found.quantizer)


def _conv(writer: _Writer, found: IntegerOperator) -> ir.Node:
    x, weight, *bias = found.node.inputs
    inputs = [*writer.codes(x), *writer.codes(weight), *_out(writer, found)]
    inputs += [writer.codes(b)[0] for b in bias]
    return _made("QLinearConv", inputs, "", **attributes_of(found.node))


def _gemm(writer: _Writer, found: IntegerOperator) -> ir.Node:
    x, weight, *bias = found.node.inputs
    inputs = [*writer.codes(x), *writer.codes(weight)]
    inputs += [writer.codes(b)[0] for b in bias] or [None]
    transposed = int(attributes_of(found.node).get("transB", 0))
    inputs += _out(writer, found)
    return _made("QGemm", inputs, alpha=1.0, transA=0, transB=transposed)


def _matmul(writer: _Writer, found: IntegerOperator) -> ir.Node:
    a, b = (writer.codes(value) for value in found.node.inputs)
    if found.quantizer is None:
        return _made("MatMulIntegerToFloat", [a[0], b[0], a[1], b[1], a[2], b[2]])
    return _made("QLinearMatMul", [*a, *b, *_out(writer, found)], "")


def _binary(op: str) -> Callable[[_Writer, IntegerOperator], ir.Node]:
    def write(writer: _Writer, found: IntegerOperator) -> ir.Node:
        a, b = (writer.codes(value) for value in found.node.inputs)
        return _made(op, [*a, *b, *_out(writer, found)])

    return write


def _unary(op: str, *names: str, **fixed: Any) -> Callable[[_Writer, IntegerOperator], ir.Node]:
    def write(writer: _Writer, found: IntegerOperator) -> ir.Node:
        own = attributes_of(found.node)
        kept = {name: own[name] for name in names if name in own}
        inputs = [*writer.codes(found.node.inputs[0]), *_out(writer, found)]
        return _made(op, inputs, **kept, **fixed)

    return write


def _concat(writer: _Writer, found: IntegerOperator) -> ir.Node:
    inputs = [part for value in found.node.inputs for part in writer.codes(value)]
    axis = attributes_of(found.node)["axis"]
    return _made("QLinearConcat", [*_out(writer, found), *inputs], axis=axis)


def _max_pool(writer: _Writer, found: IntegerOperator) -> ir.Node:
    """The operator itself takes codes."""
    return _copy(found.node, writer.codes(found.node.inputs[0])[:1])


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

_WRITERS: Mapping[str, Callable[[_Writer, IntegerOperator], ir.Node]] = {
    "Add": _binary("QLinearAdd"),
    "AveragePool": _unary("QLinearAveragePool", *_POOL, channels_last=0),
    "Concat": _concat,
    "Conv": _conv,
    "Gemm": _gemm,
    "GlobalAveragePool": _unary("QLinearGlobalAveragePool", channels_last=0),
    "LeakyRelu": _unary("QLinearLeakyRelu", "alpha"),
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mul": _binary("QLinearMul"),
    "Sigmoid": _unary("QLinearSigmoid"),
}
