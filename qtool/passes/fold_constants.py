"""Computes once what depends on parameters and constants alone.

Weights that a model makes of its parameters in every call (a part of a packed projection, a
transposed or normalized matrix, a bias with a part of it set to zero, a table looked up at fixed
places) become weights that are stored, and their layers ones with constant weights. What is made of
nothing but sizes is left to the exporter, and so is what would be stored many times larger.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from qtool import graph as G
from qtool.passes.infra import GraphPass

__all__ = ["fold_constants"]

SMALL = 2**20  # elements that may be stored, whatever they were made of


def _applies(node: fx.Node) -> bool:
    sources, value = node.all_input_nodes, G.value(node)
    if node.op != "call_function" or not sources or any(n.op != "get_attr" for n in sources):
        return False
    results = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(t, torch.Tensor) and _fixed(t) for t in results):
        return False
    several = isinstance(value, list | tuple)
    if several and any(u.target is not operator.getitem for u in node.users):
        return False
    given = sum(G.value(n).numel() for n in sources)
    return bool(sum(t.numel() for t in results) <= max(given, SMALL))


def _fixed(value: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in value.shape)


def _rewrite(module: fx.GraphModule) -> int:
    made: dict[str, fx.Node | list[fx.Node]] = {}
    count = 0
    for node in G.calls(module.graph):  # in order: what is made of folded ones is folded, too
        if node._erased or not _applies(node):
            continue
        key = str((node.target, fx.node.map_arg((node.args, node.kwargs), _stored)))
        if key not in made:
            made[key] = _folded(module, node)
        results = made[key]
        if isinstance(results, list):
            for user in list(node.users):
                G.replace(user, results[user.args[1]])  # type: ignore[index]  # a number
            node.graph.erase_node(node)
        else:
            G.replace(node, results)
        count += 1
    return count


def _stored(node: fx.Node) -> Any:
    """Two reads of one tensor are the same."""
    return f"<{node.target}>"


def _folded(module: fx.GraphModule, node: fx.Node) -> fx.Node | list[fx.Node]:
    """What the node gives, stored; a list where it gives several."""
    sources = [G.tensor(module, n) for n in node.all_input_nodes]

    def read(source: fx.Node) -> torch.Tensor:
        return G.tensor(module, source).detach()

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), read)
    with torch.no_grad():
        found = node.target(*args, **kwargs)  # type: ignore[operator]  # an OpOverload
    learned = any(isinstance(t, nn.Parameter) for t in sources)

    def store(result: torch.Tensor, name: str) -> fx.Node:
        result = result.clone(memory_format=torch.contiguous_format)
        trained = learned and result.is_floating_point()
        data = nn.Parameter(result) if trained else result
        return G.add_tensor(module, next(iter(module.graph.nodes)), data, name)

    name = G.name_of(node)
    if isinstance(found, torch.Tensor):
        return store(found, name)
    return [store(t, f"{name}.{i}") for i, t in enumerate(found)]


fold_constants = GraphPass(
    "fold_constants",
    _rewrite,
    lambda m: next((n for n in G.calls(m.graph) if _applies(n)), None),
)
