"""Ifs of a file whose condition depends on sizes and ranks alone.

torch.onnx writes them where a model asks for `x.dim()` or squeezes a dimension of unknown size, and
the results of the branches may differ in rank. The example decides which branch the graph has; that
it is the right one at other sizes is a condition of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch

from qtool.core.types import Array
from qtool.frontends.onnx.node_calls import NodeCall, UnsupportedForm
from qtool.frontends.onnx.read_nodes import OnnxNode
from qtool.frontends.onnx.shape_operators import SHAPE_OPERATORS, each_element

_LEAVES = frozenset({"Shape", "Size"})


@dataclass(frozen=True, eq=False)
class SizeBranch:
    """The condition of an If.

    Attributes:
        label: name of the If, for messages.
        condition: name of the value.
        nodes: compute it from shapes, in order.
    """

    label: str
    condition: str
    nodes: tuple[OnnxNode, ...]

    @property
    def sources(self) -> frozenset[str]:
        """The values whose shapes are read."""
        return frozenset(n.inputs[0] for n in self.nodes if n.key in _LEAVES)

    def decide_at(
        self, shapes: Mapping[str, Sequence[int]], constants: Mapping[str, Array]
    ) -> bool | None:
        """Return the condition at these shapes; None for a form of an operator that is not
        evaluated on sizes."""
        try:
            return bool(self.decide(shapes, constants))
        except Exception:  # noqa: BLE001  # numpy raises various types
            return None

    def decide(self, shapes: Mapping[str, Sequence[Any]], constants: Mapping[str, Array]) -> Any:
        """Return the condition: a bool, or one that depends on dynamic sizes.

        Args:
            shapes: shapes of the tensors whose shapes are read.
            constants: constants of the file.

        Raises:
            Exception: any, for a form of an operator that is not evaluated on sizes.
        """
        values: dict[str, Any] = {"": None, **constants}
        for node in self.nodes:
            if node.key in _LEAVES:
                result = _LEAF[node.key](node.call, shapes[node.inputs[0]])
            else:
                result = _OPERATORS[node.key](node.call, *(values[n] for n in node.inputs))
            values[node.outputs[0]] = result
        return values[self.condition].reshape(-1)[0]


def size_branches(
    nodes: Iterable[OnnxNode], constants: Mapping[str, Array]
) -> tuple[SizeBranch, ...]:
    """Return the Ifs among the nodes whose condition depends on sizes and constants alone."""
    makers: dict[str, OnnxNode] = {}
    branches = []
    for node in nodes:
        makers.update(dict.fromkeys(node.outputs, node))
        if node.key == "If" and len(node.protos) == 1:
            name = node.protos[0].input[0]
            cone = _cone(name, makers, constants)
            if cone is not None:
                branches.append(SizeBranch(node.label, name, tuple(cone)))
    return tuple(branches)


def _cone(
    name: str, makers: Mapping[str, OnnxNode], constants: Mapping[str, Array]
) -> list[OnnxNode] | None:
    """Return the nodes that compute a value from shapes, in order; None if it depends on data."""
    order: dict[int, OnnxNode] = {}
    pending = [(name, False)]
    while pending:
        value, ready = pending.pop()
        node = makers.get(value)
        if value in constants or not value:
            continue
        if node is None or (node.key not in _LEAVES and node.key not in _OPERATORS):
            return None
        if ready or node.key in _LEAVES:
            order.setdefault(id(node), node)
        elif id(node) not in order:
            pending += [(value, True), *((n, False) for n in node.inputs)]
    return list(order.values())


def _shape(call: NodeCall, shape: Sequence[Any]) -> Array:
    return np.array([*shape, None], object)[:-1][call.get("start", 0) : call.get("end")]


def _size(call: NodeCall, shape: Sequence[Any]) -> Array:
    count: Any = 1
    for size in shape:
        count *= size
    return np.array([count, None], object)[0:1].reshape(())


def _cast(call: NodeCall, x: Array) -> Array:
    if call.get("to") == onnx.TensorProto.BOOL:
        truth: Array = each_element(lambda v: v if isinstance(v, _BOOLS) else v != 0)(call, x)
        return truth
    if any(isinstance(v, _BOOLS) for v in np.asarray(x, object).ravel()):
        raise UnsupportedForm("a condition as a number")
    number: Array = SHAPE_OPERATORS["Cast"](call, x)
    return number


_BOOLS = (bool, np.bool_, torch.SymBool)
_LEAF: Mapping[str, Callable[..., Any]] = {"Shape": _shape, "Size": _size}
_OPERATORS: Mapping[str, Callable[..., Any]] = {
    **SHAPE_OPERATORS,
    "Cast": _cast,
    "Equal": each_element(lambda a, b: a == b),
    "Greater": each_element(lambda a, b: a > b),
    "GreaterOrEqual": each_element(lambda a, b: a >= b),
    "Less": each_element(lambda a, b: a < b),
    "LessOrEqual": each_element(lambda a, b: a <= b),
    "And": each_element(lambda a, b: a & b),
    "Or": each_element(lambda a, b: a | b),
    "Not": each_element(torch.sym_not),
}
"""Operator -> function of (call, arrays)."""
