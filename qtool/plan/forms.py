"""Layers in other forms than static: dynamic, and integer weights alone.

Recurrent layers have the second one alone: int8 codes in the file, dequantized by the runtime.

Convolutions have none: ONNX Runtime's dynamic convolution runs in float32 speed at best, and its
4-bit kernel is one for matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from qtool import graph as G
from qtool.plan.ops import OpRow
from qtool.plan.plan import Edge, Execution, Kind, Point
from qtool.recipe import Choice
from qtool.targets import Target
from qtool.types import UINT4, Dynamic, Observed, ObserverSpec

__all__ = ["BLOCK", "DECISIONS", "place", "refuse"]

BLOCK = 32
_MINMAX = ObserverSpec("minmax")

DECISIONS: Mapping[str, tuple[Execution, str]] = {
    "dynamic": (Execution.DYNAMIC, "its input is quantized with the range of each batch"),
    "int8-weights": (Execution.WEIGHTS, "int8 weights, input and result in float"),
    "int4-weights": (
        Execution.WEIGHTS,
        f"4-bit weights in blocks of {BLOCK}, input and result in float",
    ),
}
"""Form of a recipe -> (how it is executed, the reason of the decision)."""


@dataclass(frozen=True)
class _Names:
    node: str
    data: str
    weight: str


def refuse(node: fx.Node, row: OpRow, choice: Choice, target: Target) -> str | None:
    """Why this layer cannot have the form that was chosen, or None."""
    if row.key != "linear":
        return f"only linear layers have a form for that ({choice.because})"
    if choice.form != "int8-weights" and not target.contrib:
        return f"{target.name} has no kernel for {choice.form} ({choice.because})"
    rule = target.kernels.get(row.key)
    return f"no integer kernel on {target.name}" if rule is None else rule.refuse(node)


def place(node: fx.Node, row: OpRow, form: str, target: Target) -> list[Point]:
    """The points of a linear layer in one of these forms. Its bias stays float."""
    names = _names(node, row)
    found = []
    if form == "dynamic":
        edge = Edge(names.data, names.node)
        spec = Dynamic(target.activation)
        found.append(Point(f"{names.node}.input", Kind.ACTIVATION, spec, (edge,)))
    weight = Observed(target.weight, _MINMAX, row.channel_axis, symmetric=True)
    if row.recurrent is not None:
        state = node.args[row.recurrent]
        assert isinstance(state, fx.Node)
        edge = Edge(G.name_of(state), names.node)
        found.append(Point(f"{names.node}.recurrent", Kind.WEIGHT, weight, (edge,)))
    if form == "int4-weights":
        weight = Observed(UINT4, _MINMAX, 1 - row.channel_axis, block=BLOCK)
    edge = Edge(names.weight, names.node)
    found.append(Point(f"{names.node}.weight", Kind.WEIGHT, weight, (edge,)))
    return found


def _names(node: fx.Node, row: OpRow) -> _Names:
    data, weight = node.args[0], node.args[row.weight or 1]
    assert isinstance(data, fx.Node)
    assert isinstance(weight, fx.Node)
    return _Names(G.name_of(node), G.name_of(data), G.name_of(weight))
