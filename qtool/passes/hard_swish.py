"""Hard-swish and hard-sigmoid behind integer layers become an integer add (and a product).

hard_sigmoid(x) = clamp(x / 6 + 1/2, 0, 1), elsewhere with another slope and offset. The slope
changes only the scale of the codes, and quantizing the sum clamps anyway, so an integer add
remains, and for hard-swish an integer product behind it. The runtime has no integer kernel for
either operator. Steps that then stay in float become one operator of the file again
(hard_swish_forms.py), which a float convolution computes with its results.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import GraphPass, first_match
from qtool.passes.rewrite_rules import commuted, is_call, number

aten = torch.ops.aten
_THROUGH = frozenset(
    {
        aten.relu.default,
        aten.clamp.default,
        aten.reshape.default,
        aten.slice.Tensor,
        aten.cat.default,
        aten.add.Tensor,
        aten.mul.Tensor,
        torch_ops.global_average_pool,
    }
)


def _in_codes(node: object) -> bool:
    """Return whether a value comes from a convolution through operators that work on codes."""
    while isinstance(node, fx.Node) and node.target in _THROUGH:
        source = node.args[0]
        node = source[0] if isinstance(source, list | tuple) else source
    return isinstance(node, fx.Node) and node.target is torch_ops.conv


class _Gate(NamedTuple):
    """clamp(slope * x + offset, 0, 1)."""

    x: fx.Node
    slope: float
    offset: float


def _applies(node: fx.Node) -> bool:
    return node.target in (aten.hardswish.default, aten.hardsigmoid.default) and _in_codes(
        node.args[0]
    )


def _gate(module: fx.GraphModule, node: fx.Node) -> _Gate | None:
    """Return the gate that a node computes behind an integer layer, or multiplies x with."""
    if _applies(node):
        return _Gate(G.source(node), 1 / 6, 0.5)
    if not is_call(node, aten.clamp.default) or tuple(node.args[1:]) != (0.0, 1.0):
        return None
    for product, added in commuted(node.args[0], aten.add.Tensor):
        offset = number(module, added)
        for x, factor in commuted(product, aten.mul.Tensor):
            slope = number(module, factor)
            if offset is not None and slope is not None and slope > 0 and _in_codes(x):
                return _Gate(x, slope, offset)
    return None


def _rewrite(module: fx.GraphModule) -> int:
    gates = [(n, gate) for n in G.calls(module.graph) if (gate := _gate(module, n)) is not None]
    for node, (x, slope, offset) in gates:
        name, first = G.name_of(node), next(iter(module.graph.nodes))
        added = torch.tensor([offset], dtype=torch.float32)
        half = G.add_tensor(module, first, added, f"{name}.half")
        sixth = G.add_call(node, torch_ops.rescale, (x, slope), f"{name}.sixth", node)
        total = G.add_call(node, aten.add.Tensor, (sixth, half), f"{name}.add", node)
        swish = node.target is aten.hardswish.default
        gate_name = f"{name}.gate" if swish else name
        new = G.add_call(node, aten.clamp.default, (total, 0.0, 1.0), gate_name, node)
        if swish:
            new = G.add_call(node, aten.mul.Tensor, (x, new), name, node)
        G.replace(node, new)
    return len(gates)


hard_swish = GraphPass(
    "hard_swish",
    _rewrite,
    first_match(_applies),
    reason="quantizing to uint8 clamps: an integer add and an integer product remain",
)
