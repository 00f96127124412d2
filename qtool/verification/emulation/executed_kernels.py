"""What computes the codes of a file in the graph that the runtime executes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

from qtool.verification.emulation.code_probes import CodeTensor, label

_MOVES = frozenset((
    *("Cast", "Concat", "DequantizeLinear", "Expand", "Flatten", "Gather", "Identity", "Pad"),
    *("Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
))  # fmt: skip
_FLOAT_RESULTS = ("QGemm", "MatMulIntegerToFloat")
_HIDDEN = re.compile(r"Integer|DynamicQuantize(?!Linear)|NBits|^Q(Attention|Embed|Ordered|MoE)")


@dataclass(frozen=True)
class Producer:
    """What computes a tensor of codes in the graph that the runtime executes.

    Attributes:
        kernel: the operator type there.
        float_nodes: nodes in float between the codes that it reads and this tensor, as
            "name (type)"; empty for an integer kernel.
    """

    kernel: str
    float_nodes: tuple[str, ...]

    @property
    def integer(self) -> bool:
        return not self.float_nodes


def producers_of(executed: onnx.ModelProto, codes: Iterable[CodeTensor]) -> dict[str, Producer]:
    """Return what makes each tensor of codes in the graph that the runtime executes.

    Args:
        executed: the optimised graph of a model that returns the codes, so that they keep their
            names.
    """
    names = {c.tensor for c in codes}
    made = {o: n for n in executed.graph.node for o in n.output if o}
    ends = names | {t.name for t in executed.graph.initializer}
    found = {}
    for name in names & set(made):
        node = _behind_moves(made[name], made, ends)
        floats = _float_nodes(node, made, ends) if node.op_type == "QuantizeLinear" else []
        found[name] = Producer(node.op_type, tuple(floats))
    return found


def _behind_moves(
    node: onnx.NodeProto, made: Mapping[str, onnx.NodeProto], ends: set[str]
) -> onnx.NodeProto:
    """What computes the codes that a node moves: the runtime transposes around its kernels."""
    while node.op_type in _MOVES and node.input[0] in made and node.input[0] not in ends:
        node = made[node.input[0]]
    return node


def float_kernels(
    executed: onnx.ModelProto, model: onnx.ModelProto, codes: Iterable[CodeTensor]
) -> tuple[CodeTensor, ...]:
    """Return the results of integer kernels that read codes and give floats, as linear layers in
    front of a float node do."""
    names = {c.tensor for c in codes}
    made = {o: n for n in model.graph.node for o in n.output if o}
    executed_by = {o: n for n in executed.graph.node for o in n.output if o}
    ends = names | {t.name for t in executed.graph.initializer}
    found = []
    for node in executed.graph.node:
        name = node.output[0] if node.output else ""
        if node.op_type not in _FLOAT_RESULTS or name in names or name not in made:
            continue
        if _source(node.input[0], executed_by, ends) in names:
            found.append(CodeTensor(name, label(made[name]), made[name].op_type, "float32"))
    return tuple(found)


def _source(name: str, made: Mapping[str, onnx.NodeProto], ends: set[str]) -> str:
    """The tensor that stands behind nodes which only move it."""
    while name not in ends and name in made and made[name].op_type in _MOVES:
        name = str(made[name].input[0])
    return name


def hidden_kernels(executed: onnx.ModelProto, seen: Iterable[CodeTensor]) -> tuple[str, ...]:
    """Return the kernels of the executed graph that compute with integers inside and give floats,
    and whose results are not among those that are seen."""
    names = {c.tensor for c in seen}
    found = (n for n in executed.graph.node if _HIDDEN.search(n.op_type))
    return tuple(f"{label(n)} ({n.op_type})" for n in found if n.output[0] not in names)


def _float_nodes(
    node: onnx.NodeProto, made: Mapping[str, onnx.NodeProto], ends: set[str]
) -> list[str]:
    """Nodes that compute in float ahead of a rounding, back to codes; the nearest first."""
    found: dict[str, None] = {}
    waiting, seen = [node.input[0]], set()
    while waiting:
        name = waiting.pop(0)
        if name in ends or name in seen or name not in made:
            continue
        seen.add(name)
        source = made[name]
        if source.op_type not in _MOVES:
            found[f"{label(source)} ({source.op_type})"] = None
        waiting.extend(i for i in source.input if i)
    return list(found)
