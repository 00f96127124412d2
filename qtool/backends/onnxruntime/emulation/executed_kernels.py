"""The kernels that compute the codes of a file in the graph that the runtime executes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

from qtool.backends.onnxruntime.emulation.code_probes import CodeTensor, label

_MOVES = frozenset((
    *("Cast", "Concat", "DequantizeLinear", "Expand", "Flatten", "Gather", "Identity", "Pad"),
    *("Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
))  # fmt: skip
_FLOAT_RESULTS = ("QGemm", "MatMulIntegerToFloat")
_HIDDEN = re.compile(r"Integer|DynamicQuantize(?!Linear)|NBits|^Q(Attention|Embed|Ordered|MoE)")


@dataclass(frozen=True)
class Producer:
    """The kernel that computes a tensor of codes in the executed graph.

    Attributes:
        kernel: its operator type.
        float_nodes: float nodes between the codes that it reads and this tensor, as "name (type)";
            empty for an integer kernel.
    """

    kernel: str
    float_nodes: tuple[str, ...]

    @property
    def integer(self) -> bool:
        """Whether it is an integer kernel."""
        return not self.float_nodes


def producers_of(executed: onnx.ModelProto, codes: Iterable[CodeTensor]) -> dict[str, Producer]:
    """Return the producer of each tensor of codes in the executed graph.

    Args:
        executed: the optimised graph of a model that returns the codes, so that they keep their
            names.
        codes: the tensors.
    """
    names = {c.tensor for c in codes}
    makers = {o: n for n in executed.graph.node for o in n.output if o}
    ends = names | {t.name for t in executed.graph.initializer}
    producers = {}
    for name in names & set(makers):
        node = _skip_moves(makers[name], makers, ends)
        floats = _float_nodes(node, makers, ends) if node.op_type == "QuantizeLinear" else []
        producers[name] = Producer(node.op_type, tuple(floats))
    return producers


def _skip_moves(
    node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], ends: set[str]
) -> onnx.NodeProto:
    """Return the node that computes the codes a node moves: the runtime adds transposes."""
    while node.op_type in _MOVES and node.input[0] in makers and node.input[0] not in ends:
        node = makers[node.input[0]]
    return node


def float_kernels(
    executed: onnx.ModelProto, model: onnx.ModelProto, codes: Iterable[CodeTensor]
) -> tuple[CodeTensor, ...]:
    """Return the float results of integer kernels, such as linear layers before a float node."""
    names = {c.tensor for c in codes}
    makers = {o: n for n in model.graph.node for o in n.output if o}
    executed_by = {o: n for n in executed.graph.node for o in n.output if o}
    ends = names | {t.name for t in executed.graph.initializer}
    results = []
    for node in executed.graph.node:
        name = node.output[0] if node.output else ""
        if node.op_type not in _FLOAT_RESULTS or name in names or name not in makers:
            continue
        if _source(node.input[0], executed_by, ends) in names:
            results.append(CodeTensor(name, label(makers[name]), makers[name].op_type, "float32"))
    return tuple(results)


def _source(name: str, makers: Mapping[str, onnx.NodeProto], ends: set[str]) -> str:
    """Return the tensor that nodes which only move data start from."""
    while name not in ends and name in makers and makers[name].op_type in _MOVES:
        name = str(makers[name].input[0])
    return name


def hidden_kernels(executed: onnx.ModelProto, compared: Iterable[CodeTensor]) -> tuple[str, ...]:
    """Return the kernels with integers inside and float results that are not compared."""
    names = {c.tensor for c in compared}
    kernels = (n for n in executed.graph.node if _HIDDEN.search(n.op_type))
    return tuple(f"{label(n)} ({n.op_type})" for n in kernels if n.output[0] not in names)


def _float_nodes(
    node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], ends: set[str]
) -> list[str]:
    """Return the float nodes between codes and a rounding, the nearest first."""
    nodes: dict[str, None] = {}
    waiting, visited = [node.input[0]], set()
    while waiting:
        name = waiting.pop(0)
        if name in ends or name in visited or name not in makers:
            continue
        visited.add(name)
        source = makers[name]
        if source.op_type not in _MOVES:
            nodes[f"{label(source)} ({source.op_type})"] = None
        waiting.extend(i for i in source.input if i)
    return list(nodes)
