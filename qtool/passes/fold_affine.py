"""A stored factor or summand per channel behind a layer becomes part of its weight and bias.

Examples are a written-out norm with frozen statistics, a layer scale, a separate bias. One kernel
replaces three, the factor is rounded with the weight of its channel, and an activation behind it
can be fused with the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.fold_batch_norm import fold_statistics, layout
from qtool.passes.graph_pass import GraphPass, first_match
from qtool.passes.rewrite_rules import add_parameters, clone_as

aten = torch.ops.aten
_CHANNELS: Mapping[Any, int] = {
    torch_ops.conv: 1,
    torch_ops.conv_transpose: 1,
    aten.linear.default: -1,
}
_ANY_ORDER = (aten.mul.Tensor, aten.add.Tensor)


@dataclass(frozen=True)
class _Affine:
    """A layer, and the stored tensor that its result is combined with."""

    layer: fx.Node
    vector: fx.Node


def _match(node: fx.Node) -> _Affine | None:
    if node.target not in (*_ANY_ORDER, aten.sub.Tensor) or node.kwargs.get("alpha", 1) != 1:
        return None
    orders = [node.args, node.args[::-1]] if node.target in _ANY_ORDER else [node.args]
    for layer, vector in orders:
        if isinstance(layer, fx.Node) and isinstance(vector, fx.Node) and _fits(layer, vector):
            return _Affine(layer, vector)
    return None


def _fits(layer: fx.Node, vector: fx.Node) -> bool:
    """Return whether the vector has a value per channel, or one for all, and all is stored."""
    if layer.target not in _CHANNELS or vector.op != "get_attr" or len(layer.users) != 1:
        return False
    constants: list[Any] = [layer.args[1], G.argument(layer, 2, "bias")]
    if any(n is not None and n.op != "get_attr" for n in constants):
        return False
    rank, axis = G.rank(layer), _CHANNELS[layer.target]
    if G.rank(vector) > rank or G.value(vector).dtype != G.value(layer).dtype:
        return False
    padded: list[Any] = [1] * (rank - G.rank(vector)) + list(G.shape(vector))
    size = padded.pop(axis)
    return size in (1, int(G.shape(layer)[axis])) and all(s == 1 for s in padded)


def _rewrite(module: fx.GraphModule) -> int:
    folded: dict[tuple[Any, ...], tuple[fx.Node, fx.Node | None]] = {}
    count = 0
    for node in G.calls(module.graph):  # in order: a factor, and then a summand
        affine = _match(node)
        if affine is None:
            continue
        layer, bias = affine.layer, G.argument(affine.layer, 2, "bias")
        key = (node.target, affine.vector.target, layer.args[1], bias, layout(layer))
        if key not in folded:
            folded[key] = _folded(module, node, affine)
        args = (layer.args[0], *folded[key], *layer.args[3:])
        G.replace(node, clone_as(layer, layer.target, args))
        module.graph.erase_node(layer)
        count += 1
    return count


def _folded(
    module: fx.GraphModule, node: fx.Node, affine: _Affine
) -> tuple[fx.Node, fx.Node | None]:
    layer = affine.layer
    weight_node, bias_node = G.source(layer, 1), G.argument(layer, 2, "bias")
    bias = None if bias_node is None else G.tensor(module, bias_node)
    channels = int(G.shape(layer)[_CHANNELS[layer.target]])
    scales, subtracted = node.target is aten.mul.Tensor, node.target is aten.sub.Tensor

    def fold(weight: torch.Tensor, bias: torch.Tensor | None, vector: torch.Tensor) -> Any:
        vector = vector.double().reshape(-1).expand(channels)
        zeros, ones = torch.zeros_like(vector), torch.ones_like(vector)
        gain, shift = (vector, None) if scales else (None, -vector if subtracted else vector)
        return fold_statistics(weight, bias, gain, shift, zeros, ones, 0.0, layout(layer))

    tensors = G.tensor(module, weight_node), bias, G.tensor(module, affine.vector)
    scaled, shifted = G.computed(fold, *tensors)
    name = G.name_of(layer)
    if not scales:
        (new_bias,) = add_parameters(module, name, bias=shifted)
        return weight_node, new_bias
    if bias is None:
        (new_weight,) = add_parameters(module, name, weight=scaled)
        return new_weight, None
    new_weight, new_bias = add_parameters(module, name, weight=scaled, bias=shifted)
    return new_weight, new_bias


fold_affine = GraphPass("fold_affine", _rewrite, first_match(_match))
