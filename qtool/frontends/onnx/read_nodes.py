"""Reads the nodes of a file: folds constants, and restores linear layers.

A product with a constant matrix becomes a linear layer; an If with a constant condition becomes the
nodes of one branch.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qtool.core.errors import CaptureError
from qtool.core.graph.onnx_subgraph import TORCH_TYPES, read_names, unoptimized_session
from qtool.frontends.onnx.external_weights import MappedArray
from qtool.frontends.onnx.node_calls import Array, NodeCall
from qtool.frontends.onnx.operator_table import OPERATORS, OperatorRule
from qtool.frontends.onnx.runtime_parts import (
    FileContext,
    group_nodes,
    inputs_of,
    make_part,
    outputs_of,
)
from qtool.frontends.onnx.runtime_values import non_tensor_values
from qtool.frontends.onnx.value_names import label_of

LINEAR = "qtool.Linear"
_GROWS = frozenset({"ConstantOfShape", "Expand", "Tile", "Range", "Resize", "Pad", "OneHot"})
_LARGE = 2**20  # largest number of elements that a growing operator may fold to
_MESSAGE = 2**31 - 2**24  # bytes of constants in one protobuf message; nodes need the rest


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
    model: onnx.ModelProto, external: Mapping[str, Array]
) -> tuple[dict[str, Any], tuple[OnnxNode, ...], FileContext]:
    """Return constants by name, the nodes to run in order, and the context of the file.

    Args:
        model: the file.
        external: constants in other files, which are inputs of the model.

    Raises:
        CaptureError: ONNX Runtime cannot load the file.
    """
    graph = model.graph
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    known: dict[str, Any] = {**{i.name: _to_array(i) for i in graph.initializer}, **external}
    source = FileContext(tuple(model.opset_import), model.ir_version, known, _used(graph))
    protos = _live_nodes(
        list(_fold_constants(graph, known, source)), {o.name for o in graph.output}
    )
    rows = {id(p): _rule_for(p, source.used) for p in protos}
    asked = any(rows[id(p)] is None or _casts_oddly(p) for p in protos)
    odd = non_tensor_values(model) if asked else frozenset[str]()
    readers = Counter(n for p in protos for n in read_names(p))
    readers.update(o.name for o in graph.output)
    nodes: list[OnnxNode] = []
    for group in group_nodes(protos, odd):
        node = _node(group, rows, known, opset, readers)
        node = _as_linear(node, known)
        if not _fuse_bias(nodes, node, known, readers):
            nodes.append(node)
    return known, tuple(nodes), source


def _casts_oddly(node: onnx.NodeProto) -> bool:
    """Return whether a node casts to a type that torch or numpy does not have."""
    kinds = [a.i for a in node.attribute if node.op_type == "Cast" and a.name == "to"]
    return any(k not in TORCH_TYPES or k == onnx.TensorProto.BFLOAT16 for k in kinds)


def _to_array(tensor: onnx.TensorProto) -> Array:
    try:
        return numpy_helper.to_array(tensor)
    except ValueError as error:
        raise CaptureError(
            f"the data of '{tensor.name}' does not have the stated size {list(tensor.dims)}"
        ) from error


def operator_key(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _used(graph: onnx.GraphProto) -> frozenset[str]:
    return frozenset(
        [*(n for p in graph.node for n in read_names(p)), *(o.name for o in graph.output)]
    )


def _fold_constants(
    graph: onnx.GraphProto, known: dict[str, Any], source: FileContext
) -> Iterator[Any]:
    """Yield the nodes that depend on data; add the results of all others to `known`."""
    queue = deque(graph.node)
    while queue:
        proto = queue.popleft()
        if proto.op_type == "If" and proto.input[0] in known and operator_key(proto) == "If":
            queue.extendleft(reversed(_branch(proto, bool(known[proto.input[0]]), known)))
        elif (values := _constant_results(proto, known, source)) is not None:
            known.update(values)
        else:
            yield proto


def _live_nodes(protos: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that an output depends on."""
    live = []
    for proto in reversed(protos):
        if wanted & set(proto.output):
            live.append(proto)
            wanted.update(read_names(proto))
    return live[::-1]


def _branch(proto: onnx.NodeProto, taken: bool, known: dict[str, Any]) -> list[onnx.NodeProto]:
    """Return the nodes of one branch of an If, with results under the names of the If."""
    name = "then_branch" if taken else "else_branch"
    graph = next(a.g for a in proto.attribute if a.name == name)
    known.update({i.name: numpy_helper.to_array(i) for i in graph.initializer})
    ends = [
        helper.make_node("Identity", [inner.name], [outer], f"{proto.name}.{outer}")
        for inner, outer in zip(graph.output, proto.output, strict=True)
        if outer
    ]
    return [*graph.node, *ends]


def _constant_results(proto: onnx.NodeProto, known: Mapping[str, Any], source: FileContext) -> Any:
    """Return the results of a node that reads only constants, by name; None if it has to run."""
    if operator_key(proto) == "Constant":
        value = helper.get_attribute_value(proto.attribute[0])
        if isinstance(value, onnx.TensorProto):
            return {proto.output[0]: numpy_helper.to_array(value)}
        kinds = {"value_float": np.float32, "value_floats": np.float32}
        if proto.attribute[0].name.startswith(("value_float", "value_int")):
            kind = kinds.get(proto.attribute[0].name, np.int64)
            return {proto.output[0]: np.asarray(value, kind)}
        return None
    names = read_names(proto)
    if not names or any(n not in known for n in names):
        return None
    given = {n: known[n] for n in names}
    if any(isinstance(a, MappedArray) for a in given.values()):
        return _view_of_mapped(proto, given)
    if proto.op_type in _GROWS and _largest_result(given) > _LARGE:
        return None
    _refuse_huge(proto, given)
    made = [o for o in proto.output if o]
    part = make_part([proto], made, [], given, source, label_of(proto))
    try:
        values: Any = unoptimized_session(part.model).run(None, {})
    except Exception:  # noqa: BLE001  # ONNX Runtime raises various types
        try:  # the runtime has no kernel for every type
            values = ReferenceEvaluator(part.model).run(None, {})
        except Exception:  # noqa: BLE001  # any numpy error: the node runs later
            return None
    if not all(isinstance(v, np.ndarray | np.generic) for v in values):
        return None
    return dict(zip(made, map(np.asarray, values), strict=True))


def _refuse_huge(proto: onnx.NodeProto, given: Mapping[str, Array]) -> None:
    """Refuse constants that grow without bound: a few nodes can double one again and again."""
    size = sum(a.nbytes for a in given.values())
    if size > _MESSAGE:
        raise CaptureError(
            f"{label_of(proto)} ({proto.op_type}) reads {size:,} bytes of constants that the file "
            f"computes; the limit is {_MESSAGE:,}: check that the file is what you expect"
        )


def _view_of_mapped(proto: onnx.NodeProto, given: Mapping[str, Array]) -> Any:
    """Return the result of a node on a mapped array as a view; None if it has to read it."""
    if operator_key(proto) not in ("Transpose", "Identity"):
        return None
    (array,) = given.values()
    if proto.op_type == "Transpose":
        orders = [list(a.ints) for a in proto.attribute if a.name == "perm"]
        array = array.transpose(*orders)
    return {proto.output[0]: array}


def _largest_result(given: Mapping[str, Array]) -> float:
    """Return an upper bound of the number of elements: the product of all possible sizes."""
    sizes = [abs(float(v)) for a in given.values() if a.dtype.kind in "if" for v in a.ravel()[:16]]
    whole = [max(1.0, s) for s in sizes if np.isfinite(s)]
    return float(np.prod(whole)) if whole else 0.0


def _rule_for(proto: onnx.NodeProto, used: frozenset[str]) -> OperatorRule | None:
    """Return the operator's rule if it supports everything that the node has."""
    row = OPERATORS.get(operator_key(proto))
    if row is None or not {a.name for a in proto.attribute} <= row.attributes:
        return None
    outputs = [i for i, o in enumerate(proto.output) if o in used]
    fits = len(proto.input) <= row.inputs and all(i < row.outputs for i in outputs)
    return row if fits else None


def _node(
    protos: tuple[onnx.NodeProto, ...],
    rows: Mapping[int, OperatorRule | None],
    known: Mapping[str, Any],
    opset: int,
    readers: Mapping[str, int],
) -> OnnxNode:
    last = protos[-1]
    row = rows[id(last)] if len(protos) == 1 else None
    inputs, outputs = tuple(last.input), tuple(last.output)
    if row is None:
        inside = Counter(n for p in protos for n in read_names(p))
        inputs = tuple(inputs_of(protos))
        outputs = tuple(o for o in outputs_of(protos) if readers[o] > inside[o])
    attributes = {a.name: _attribute(a) for a in last.attribute}
    constants = {i: known[n] for i, n in enumerate(inputs) if n in known}
    label = label_of(last)
    call = NodeCall(label, attributes, len(outputs), opset, constants)
    return OnnxNode(label, operator_key(last), row, call, inputs, outputs, protos)


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _as_linear(node: OnnxNode, known: dict[str, Any]) -> OnnxNode:
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


def _fuse_bias(
    nodes: list[OnnxNode], node: OnnxNode, known: Mapping[str, Any], readers: Mapping[str, int]
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
