"""What layers give is scaled and shifted by their weights.

A stored factor or summand for each channel behind a layer (a norm with frozen statistics that is
written out, a layer scale, a bias added by hand) becomes part of its weight and its bias: one
kernel instead of three, the factor is rounded with the weight, channel by channel, and an
activation behind it is fused with the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.fold_batch_norm import fold_statistics, layout
from qtool.passes.graph_pass import GraphPass

aten = torch.ops.aten
_CHANNELS: Mapping[Any, int] = {
    torch_ops.conv: 1,
    torch_ops.conv_transpose: 1,
    aten.linear.default: -1,
}
_ANY_ORDER = (aten.mul.Tensor, aten.add.Tensor)


@dataclass(frozen=True)
class _Affine:
    """A layer and the stored tensor that its result is combined with."""

    layer: fx.Node
    vector: fx.Node


def _found(node: fx.Node) -> _Affine | None:
    known = (*_ANY_ORDER, aten.sub.Tensor)
    if node.target not in known or node.kwargs.get("alpha", 1) != 1:
        return None
    orders = [node.args, node.args[::-1]] if node.target in _ANY_ORDER else [node.args]
    for layer, vector in orders:
        if isinstance(layer, fx.Node) and isinstance(vector, fx.Node) and _fits(layer, vector):
            return _Affine(layer, vector)
    return None


def _fits(layer: fx.Node, vector: fx.Node) -> bool:
    """Whether the vector has one value for each channel, or one for all, and all is stored."""
    if layer.target not in _CHANNELS or vector.op != "get_attr" or len(layer.users) != 1:
        return False
    held: list[Any] = [layer.args[1], G.argument(layer, 2, "bias")]
    if any(n is not None and n.op != "get_attr" for n in held):
        return False
    rank, axis = G.rank(layer), _CHANNELS[layer.target]
    if G.rank(vector) > rank or G.value(vector).dtype != G.value(layer).dtype:
        return False
    padded: list[Any] = [1] * (rank - G.rank(vector)) + list(G.shape(vector))
    size = padded.pop(axis)
    return size in (1, int(G.shape(layer)[axis])) and all(s == 1 for s in padded)


def _rewrite(module: fx.GraphModule) -> int:
    made: dict[tuple[Any, ...], tuple[fx.Node, fx.Node | None]] = {}
    count = 0
    for node in G.calls(module.graph):  # in order: a factor, and then a summand
        affine = _found(node)
        if affine is None:
            continue
        layer, bias = affine.layer, G.argument(affine.layer, 2, "bias")
        key = (node.target, affine.vector.target, layer.args[1], bias, layout(layer))
        if key not in made:
            made[key] = _folded(module, node, affine)
        args = (layer.args[0], *made[key], *layer.args[3:])
        name = G.name_of(layer)
        G.replace(node, G.add_call(layer, layer.target, args, name, layer, layer))
        module.graph.erase_node(layer)
        count += 1
    return count


def _folded(
    module: fx.GraphModule, node: fx.Node, affine: _Affine
) -> tuple[fx.Node, fx.Node | None]:
    layer, first = affine.layer, next(iter(module.graph.nodes))
    weight_node, bias_node = layer.args[1], G.argument(layer, 2, "bias")
    assert isinstance(weight_node, fx.Node)
    weight = G.tensor(module, weight_node).detach()
    bias = None if bias_node is None else G.tensor(module, bias_node).detach()
    channels = int(G.shape(layer)[_CHANNELS[layer.target]])
    vector = G.tensor(module, affine.vector).detach().double().reshape(-1).expand(channels)
    zeros, ones = torch.zeros_like(vector), torch.ones_like(vector)
    name = G.name_of(layer)
    if node.target is not aten.mul.Tensor:
        shift = vector if node.target is aten.add.Tensor else -vector
        _, shifted = fold_statistics(weight, bias, None, shift, zeros, ones, 0.0, layout(layer))
        return weight_node, G.add_tensor(module, first, nn.Parameter(shifted), f"{name}.bias")
    scaled, shifted = fold_statistics(weight, bias, vector, None, zeros, ones, 0.0, layout(layer))
    new = G.add_tensor(module, first, nn.Parameter(scaled), f"{name}.weight")
    if bias is None:
        return new, None
    return new, G.add_tensor(module, first, nn.Parameter(shifted), f"{name}.bias")


fold_affine = GraphPass(
    "fold_affine",
    _rewrite,
    lambda m: next((n for n in G.calls(m.graph) if _found(n) is not None), None),
)
