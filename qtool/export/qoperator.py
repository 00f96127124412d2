"""From a QDQ model to the QOperator form: QLinearConv and its kin, one node per integer kernel.

The patterns are those of the integer engine, which are the runtime's own fusions, so that both
files run the same kernels. What stands in no pattern stays as it is: the Q and DQ at the borders,
operators in float between them, elements moved on codes. Operators of the domain com.microsoft
are described in ONNX Runtime's docs/ContribOperators.md; inputs and attributes here are in the
order of their schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import helper, numpy_helper

from qtool.integer.patterns import Fused, fused, moved
from qtool.integer.qdq import QdqGraph

__all__ = ["is_qoperator", "to_qoperator"]

CONTRIB = "com.microsoft"
FORMAT = "qtool_format"
_MARK = {FORMAT: "qoperator"}


@dataclass
class _Writer:
    graph: QdqGraph
    added: list[onnx.TensorProto] = field(default_factory=list)

    def codes(self, name: str) -> list[str]:
        """The names of codes, scale and zero point behind a dequantized tensor."""
        return self._with_zero(self.graph.makers[name])

    def parameters(self, node: onnx.NodeProto) -> list[str]:
        """The names of scale and zero point of a Q or DQ."""
        return self._with_zero(node)[1:]

    def _with_zero(self, node: onnx.NodeProto) -> list[str]:
        names = list(node.input)
        if len(names) > 2 and names[2]:
            return names
        params, name = self.graph.params(node), f"{names[1]}.zero"
        if not any(t.name == name for t in self.added):
            zero = params.zero_point.numpy().astype(params.qtype.numpy_dtype)
            self.added.append(numpy_helper.from_array(zero, name))
        return [*names[:2], name]


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
    writer = _Writer(QdqGraph(model, signed=int8))
    done: set[int] = set()
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if id(node) in done:
            continue
        if (found := fused(writer.graph, node)) is not None and _writable(writer, found):
            done |= {id(n) for n in found.covered}
            nodes.append(_WRITERS[node.op_type](writer, found))
        elif (move := moved(writer.graph, node)) is not None:
            done.add(id(move.end))
            copy = _copy(node, [move.codes.name, *node.input[1:]], move.end.output[0])
            nodes.append(copy)
        else:
            nodes.append(node)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(_needed(nodes, writer.graph.outputs))
    result.graph.initializer.extend(writer.added)
    _tidy(result)
    helper.set_model_props(result, {p.key: p.value for p in model.metadata_props} | _MARK)
    return result


def _writable(writer: _Writer, found: Fused) -> bool:
    """A bias has to be stored as codes, and a pool without holes: the operators take no other."""
    if found.node.op_type not in _WRITERS:
        return False
    if "dilations" in writer.graph.attributes(found.node) and found.node.op_type == "AveragePool":
        return False
    if not found.operator.weight or len(found.node.input) < 3:
        return True
    bias = writer.graph.codes(found.node.input[2])
    return bias is not None and bias.constant is not None


def _made(
    found: Fused, op: str, inputs: list[str], domain: str = CONTRIB, **attributes: Any
) -> onnx.NodeProto:
    output = (found.end if found.end is not None else found.node).output[0]
    name = found.node.name
    return helper.make_node(op, inputs, [output], name=name, domain=domain, **attributes)


def _copy(node: onnx.NodeProto, inputs: list[str], output: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:], copy.output[:] = inputs, [output]
    return copy


def _out(writer: _Writer, found: Fused) -> list[str]:
    return [] if found.end is None else writer.parameters(found.end)


def _conv(writer: _Writer, found: Fused) -> onnx.NodeProto:
    x, weight, *bias = found.node.input
    inputs = [*writer.codes(x), *writer.codes(weight), *_out(writer, found)]
    inputs += [writer.codes(b)[0] for b in bias]
    attributes = writer.graph.attributes(found.node)
    return _made(found, "QLinearConv", inputs, "", **attributes)


def _gemm(writer: _Writer, found: Fused) -> onnx.NodeProto:
    x, weight, *bias = found.node.input
    inputs = [*writer.codes(x), *writer.codes(weight)]
    inputs += [writer.codes(b)[0] for b in bias] or [""]
    transposed = int(writer.graph.attributes(found.node).get("transB", 0))
    inputs += _out(writer, found)
    return _made(found, "QGemm", inputs, alpha=1.0, transA=0, transB=transposed)


def _matmul(writer: _Writer, found: Fused) -> onnx.NodeProto:
    a, b = (writer.codes(name) for name in found.node.input)
    if found.end is None:
        return _made(found, "MatMulIntegerToFloat", [a[0], b[0], a[1], b[1], a[2], b[2]])
    return _made(found, "QLinearMatMul", [*a, *b, *_out(writer, found)], "")


def _binary(op: str) -> Callable[[_Writer, Fused], onnx.NodeProto]:
    def write(writer: _Writer, found: Fused) -> onnx.NodeProto:
        a, b = (writer.codes(name) for name in found.node.input)
        return _made(found, op, [*a, *b, *_out(writer, found)])

    return write


def _unary(op: str, *names: str, **fixed: Any) -> Callable[[_Writer, Fused], onnx.NodeProto]:
    def write(writer: _Writer, found: Fused) -> onnx.NodeProto:
        own = writer.graph.attributes(found.node)
        kept = {name: own[name] for name in names if name in own}
        inputs = [*writer.codes(found.node.input[0]), *_out(writer, found)]
        return _made(found, op, inputs, **kept, **fixed)

    return write


def _concat(writer: _Writer, found: Fused) -> onnx.NodeProto:
    inputs = [part for name in found.node.input for part in writer.codes(name)]
    axis = writer.graph.attributes(found.node)["axis"]
    return _made(found, "QLinearConcat", [*_out(writer, found), *inputs], axis=axis)


def _max_pool(writer: _Writer, found: Fused) -> onnx.NodeProto:
    """The operator itself takes codes."""
    assert found.end is not None
    return _copy(found.node, writer.codes(found.node.input[0])[:1], found.end.output[0])


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

_WRITERS: Mapping[str, Callable[[_Writer, Fused], onnx.NodeProto]] = {
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


def _needed(nodes: list[onnx.NodeProto], outputs: list[str]) -> list[onnx.NodeProto]:
    """The nodes that an output depends on: most Q and DQ are part of a node now."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed & set(node.output):
            needed |= set(node.input)
            kept.append(node)
    return kept[::-1]


def _tidy(model: onnx.ModelProto) -> None:
    """Drops what nothing reads, and declares the domain where it is used."""
    graph = model.graph
    read = {name for node in graph.node for name in node.input} | {o.name for o in graph.output}
    made = {name for node in graph.node for name in node.output}
    stored = [i for i in graph.initializer if i.name in read]
    typed = [v for v in graph.value_info if v.name in made]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(stored)
    graph.value_info.extend(typed)
    declared = {o.domain for o in model.opset_import}
    if CONTRIB not in declared and any(n.domain == CONTRIB for n in graph.node):
        model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
