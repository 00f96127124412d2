"""Computes once what depends on parameters and constants alone.

Weights that a model makes of its parameters in every call (a part of a packed projection, a
transposed or normalized matrix, a bias with a part of it set to zero, a table looked up at fixed
places) become weights that are stored, and their layers ones with constant weights. What is made of
nothing but sizes is left to the exporter, and so is what would be stored many times larger.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from qtool import graph as G
from qtool.passes.infra import GraphPass

__all__ = ["fold_constants"]

SMALL = 2**20  # elements that may be stored, whatever they were made of


def _applies(node: fx.Node) -> bool:
    sources, value = node.all_input_nodes, G.value(node)
    if node.op != "call_function" or not sources or not isinstance(value, torch.Tensor):
        return False
    if any(n.op != "get_attr" for n in sources) or not _fixed(value):
        return False
    given = sum(G.value(n).numel() for n in sources)
    return bool(value.numel() <= max(given, SMALL))


def _fixed(value: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in value.shape)


def _rewrite(module: fx.GraphModule) -> int:
    made: dict[str, fx.Node] = {}
    count = 0
    for node in G.calls(module.graph):  # in order: what is made of folded ones is folded, too
        if not _applies(node):
            continue
        key = str((node.target, fx.node.map_arg((node.args, node.kwargs), _stored)))
        if key not in made:
            made[key] = _folded(module, node)
        G.replace(node, made[key])
        count += 1
    return count


def _stored(node: fx.Node) -> Any:
    """Two reads of one tensor are the same."""
    return f"<{node.target}>"


def _folded(module: fx.GraphModule, node: fx.Node) -> fx.Node:
    sources = [G.tensor(module, n) for n in node.all_input_nodes]

    def read(source: fx.Node) -> torch.Tensor:
        return G.tensor(module, source).detach()

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), read)
    with torch.no_grad():
        result = node.target(*args, **kwargs).clone(memory_format=torch.contiguous_format)  # type: ignore[operator]  # an OpOverload
    trained = any(isinstance(t, nn.Parameter) for t in sources) and result.is_floating_point()
    data = nn.Parameter(result) if trained else result
    return G.add_tensor(module, next(iter(module.graph.nodes)), data, G.name_of(node))


fold_constants = GraphPass(
    "fold_constants",
    _rewrite,
    lambda m: next((n for n in G.calls(m.graph) if _applies(n)), None),
)
