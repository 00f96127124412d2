"""A stored vector that is added to what a layer without a bias gives is its bias.

So `x @ w + b` is one layer, and what follows it (a ReLU) is fused with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool import graph as G
from qtool.graph import torch_ops
from qtool.passes.infra import GraphPass

__all__ = ["fold_bias"]

aten = torch.ops.aten
_CHANNELS = {torch_ops.conv: 1, torch_ops.conv_transpose: 1, aten.linear.default: -1}


def _parts(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The layer and the vector, in whichever order they are added."""
    if node.target is not aten.add.Tensor or node.kwargs.get("alpha", 1) != 1:
        return None
    for layer, vector in (node.args, node.args[::-1]):
        if isinstance(layer, fx.Node) and isinstance(vector, fx.Node) and _fits(layer, vector):
            return layer, vector
    return None


def _fits(layer: fx.Node, vector: fx.Node) -> bool:
    if layer.target not in _CHANNELS or vector.op != "get_attr" or len(layer.users) != 1:
        return False
    weight: Any = layer.args[1]
    if G.argument(layer, 2, "bias") is not None or weight.op != "get_attr":
        return False
    rank, shape = G.rank(layer), list(G.shape(vector))
    channels = [1] * rank
    channels[_CHANNELS[layer.target]] = size = int(G.shape(layer)[_CHANNELS[layer.target]])
    padded = [1] * (rank - len(shape)) + shape
    return padded == channels and size > 1 and G.value(vector).dtype == G.value(layer).dtype


def _rewrite(module: fx.GraphModule) -> int:
    found = [(n, parts) for n in G.calls(module.graph) if (parts := _parts(n)) is not None]
    for node, (layer, vector) in found:
        name = G.name_of(layer)
        if G.rank(vector) > 1:
            data = G.tensor(module, vector).detach().reshape(-1)
            first = next(iter(module.graph.nodes))
            vector = G.add_tensor(module, first, torch.nn.Parameter(data), f"{name}.bias")
        args = (*layer.args[:2], vector, *layer.args[3:])
        with_bias = G.add_call(node, layer.target, args, name, layer, layer)
        G.replace(node, with_bias)
        module.graph.erase_node(layer)
    return len(found)


fold_bias = GraphPass(
    "fold_bias",
    _rewrite,
    lambda m: next((n for n in G.calls(m.graph) if _parts(n) is not None), None),
)
