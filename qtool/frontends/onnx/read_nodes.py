"""Reads the nodes of a file, and restores linear layers from products with a constant matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtool.backends.onnx.nested_graphs import read_names
from qtool.backends.onnx.subgraph import TORCH_TYPES
from qtool.core.types import Array
from qtool.frontends.onnx.constant_folding import fold_constants, operator_key, to_array
from qtool.frontends.onnx.external_weights import MappedArray
from qtool.frontends.onnx.node_calls import NodeCall
from qtool.frontends.onnx.operator_table import OPERATORS, OperatorRule
from qtool.frontends.onnx.runtime_parts import (
    FileContext,
    group_nodes,
    inputs_of,
    outputs_of,
)
from qtool.frontends.onnx.runtime_values import non_tensor_values
from qtool.frontends.onnx.value_names import label_of

LINEAR = "qtool.Linear"
_FEWEST = 1 << 10
"""Smallest number of elements. Vectors are not shared: biases of zeros and norms of ones are equal
by chance, and recovery steps change them layer by layer."""
_SAMPLED = 64  # elements that are compared before the others


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """An operator that a rule computes, or nodes that ONNX Runtime runs (`rule` is None).

    Attributes:
        label: readable name.
        key: operator, with its domain if that is not ONNX's own.
        rule: computes it, or None.
        call: attributes and constants, for the rule.
        inputs: names.
        outputs: names.
        protos: nodes of the file.
    """

    label: str
    key: str
    rule: OperatorRule | None
    call: NodeCall
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    protos: tuple[onnx.NodeProto, ...]


def read_nodes(
    model: onnx.ModelProto, external: Mapping[str, Array], conditions: Mapping[str, bool]
) -> tuple[dict[str, Array], tuple[OnnxNode, ...], FileContext]:
    """Return constants by name, the nodes to run in order, and the context of the file.

    Args:
        model: the file.
        external: constants in other files, which are inputs of the model.
        conditions: value -> what it is; each If on one becomes one of its branches.

    Raises:
        CaptureError: ONNX Runtime cannot load the file.
    """
    graph = model.graph
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    known: dict[str, Array] = {**{i.name: to_array(i) for i in graph.initializer}, **external}
    known.update((name, np.array(value)) for name, value in conditions.items())
    source = FileContext(tuple(model.opset_import), model.ir_version, known)
    outputs = {o.name for o in graph.output}
    protos = _live_nodes(list(fold_constants(graph, known, source)), set(outputs))
    source = replace(source, used=frozenset(outputs.union(*map(read_names, protos))))
    rules = {id(p): _rule_for(p, source.used) for p in protos}
    uncertain = any(rules[id(p)] is None or _casts_oddly(p) for p in protos)
    non_tensors = non_tensor_values(model) if uncertain else frozenset[str]()
    readers = Counter(n for p in protos for n in read_names(p))
    readers.update(o.name for o in graph.output)
    shared = _SharedConstants(known, (i.name for i in graph.initializer))
    nodes: list[OnnxNode] = []
    for group in group_nodes(protos, non_tensors):
        node = _node(group, rules, known, opset, readers)
        node = _with_shared_weights(_as_linear(node, known), shared)
        if not _fuse_bias(nodes, node, known, readers):
            nodes.append(node)
    return known, tuple(nodes), source


def nodes_from_sizes(
    nodes: Iterable[OnnxNode], known: Collection[str]
) -> dict[str, frozenset[int]]:
    """Return each value that follows from sizes and constants alone -> positions of the nodes that
    compute it, from the Shape on."""
    steps: dict[str, frozenset[int]] = {}
    for position, node in enumerate(nodes):
        read = [n for n in node.inputs if n and n not in known]
        if node.key == "Shape" or (read and all(n in steps for n in read)):
            before = frozenset().union(*(steps[n] for n in read if n in steps))
            steps |= dict.fromkeys(node.outputs, before | {position})
    return steps


def _casts_oddly(node: onnx.NodeProto) -> bool:
    """Return whether a node casts to a type that torch or numpy does not have."""
    kinds = [a.i for a in node.attribute if node.op_type == "Cast" and a.name == "to"]
    return any(k not in TORCH_TYPES or k == onnx.TensorProto.BFLOAT16 for k in kinds)


def _live_nodes(protos: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that an output depends on."""
    live = []
    for proto in reversed(protos):
        if wanted & set(proto.output):
            live.append(proto)
            wanted.update(read_names(proto))
    return live[::-1]


def _rule_for(proto: onnx.NodeProto, used: frozenset[str]) -> OperatorRule | None:
    """Return the operator's rule if it supports everything that the node has."""
    rule = OPERATORS.get(operator_key(proto))
    if rule is None or not {a.name for a in proto.attribute} <= rule.attributes:
        return None
    outputs = [i for i, o in enumerate(proto.output) if o in used]
    fits = len(proto.input) <= rule.inputs and all(i < rule.outputs for i in outputs)
    return rule if fits else None


def _node(
    protos: tuple[onnx.NodeProto, ...],
    rules: Mapping[int, OperatorRule | None],
    known: Mapping[str, Array],
    opset: int,
    readers: Mapping[str, int],
) -> OnnxNode:
    last = protos[-1]
    rule = rules[id(last)] if len(protos) == 1 else None
    inputs, outputs = tuple(last.input), tuple(last.output)
    if rule is None:
        internal = Counter(n for p in protos for n in read_names(p))
        inputs = tuple(inputs_of(protos))
        outputs = tuple(o for o in outputs_of(protos) if readers[o] > internal[o])
    attributes = {a.name: _attribute(a) for a in last.attribute}
    constants = {i: known[n] for i, n in enumerate(inputs) if n in known}
    label = label_of(last)
    call = NodeCall(label, attributes, len(outputs), opset, constants)
    return OnnxNode(label, operator_key(last), rule, call, inputs, outputs, protos)


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _as_linear(node: OnnxNode, known: dict[str, Array]) -> OnnxNode:
    """Turn a product with a constant matrix into a linear layer with weight [out, in]."""
    if node.rule is None or node.key not in ("MatMul", "Gemm") or node.inputs[1] not in known:
        return node
    weight, get = known[node.inputs[1]], node.call.get
    plain = get("alpha", 1.0) == get("beta", 1.0) == 1.0 and not get("transA", 0)
    bias = known.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    biased = len(node.inputs) > 2 and node.inputs[2] != ""
    columns = 0 if weight.ndim != 2 else weight.shape[0 if get("transB", 0) else 1]
    fits = not biased or (bias is not None and bias.shape == (columns,))
    if weight.ndim != 2 or weight.dtype.kind != "f" or not plain or not fits:
        return node
    name = node.inputs[1]
    if not get("transB", 0):
        name += ".transposed"
        transposed = weight.T if isinstance(weight, MappedArray) else np.ascontiguousarray(weight.T)
        known.setdefault(name, transposed)
    inputs = (node.inputs[0], name, *(node.inputs[2:] if biased else ()))
    return replace(node, key=LINEAR, rule=OPERATORS[LINEAR], inputs=inputs)


class _SharedConstants:
    """One name for equal weights among a file's constants, so that they are stored once.

    Exporters share a weight through Identity, Transpose, Reshape or Cast nodes of one initializer,
    or write it several times. The table of a language model is also its head, transposed.
    """

    def __init__(self, known: dict[str, Array], stored: Iterable[str]) -> None:
        """
        Args:
            known: constants by name; an equal one becomes the same array.
            stored: names that come first.
        """
        self._known = known
        self._names: dict[tuple[Any, ...], list[str]] = {}
        for name in stored:
            self.first(name)

    def first(self, name: str) -> str:
        """Return the first name of a constant's value; other names as they are."""
        array = self._known.get(name)
        if not isinstance(array, np.ndarray) or array.ndim < 2 or array.size < _FEWEST:
            return name
        if array.dtype.kind != "f":
            return name
        sample = array.flat[:: array.size // _SAMPLED].tobytes()
        names = self._names.setdefault((array.dtype.str, array.shape, sample), [])
        for other in names:
            if other == name or np.array_equal(self._known[other], array):
                self._known[name] = self._known[other]
                return other
        names.append(name)
        return name


def _with_shared_weights(node: OnnxNode, shared: _SharedConstants) -> OnnxNode:
    """Let a node read the first of equal constants; a part reads those of the file."""
    if node.rule is None:
        return node
    return replace(node, inputs=tuple(map(shared.first, node.inputs)))


def _fuse_bias(
    nodes: list[OnnxNode], node: OnnxNode, known: Mapping[str, Array], readers: Mapping[str, int]
) -> bool:
    """Make a constant that `node` adds to the linear layer before it its bias, if it can be.

    Returns whether it did.
    """
    before = nodes[-1] if nodes else None
    if node.key != "Add" or before is None or before.key != LINEAR or len(before.inputs) > 2:
        return False
    result = before.outputs[0]
    others = [n for n in node.inputs if n != result]
    bias = known.get(others[0]) if len(others) == 1 else None
    outputs = known[before.inputs[1]].shape[0]
    if bias is None or bias.shape != (outputs,) or readers[result] != 1:
        return False
    inputs, protos = (*before.inputs, others[0]), (*before.protos, *node.protos)
    nodes[-1] = replace(before, inputs=inputs, outputs=node.outputs, protos=protos)
    return True
