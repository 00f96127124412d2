"""Layers whose kernels take any number of dimensions stand on what was flattened for them.

The layers of a graph are on two dimensions, as integer Gemms are. Those on weights in blocks and
those that quantize their input at run time need no reshape before and behind.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool import graph as G
from qtool.graph import torch_ops
from qtool.passes.flatten_linear import ELEMENTWISE

__all__ = ["keep_deep"]

_ANY_RANK = frozenset({torch_ops.linear_nbits, torch_ops.dynamic_linear})
_RESHAPE = torch.ops.aten.reshape.default


def keep_deep(module: fx.GraphModule) -> None:
    """In place, where everybody who reads the result reshapes it."""
    for node in G.calls(module.graph):
        flat = node.args[0] if node.target in _ANY_RANK else None
        if not isinstance(flat, fx.Node) or flat.target is not _RESHAPE:
            continue
        x, chain = flat.args[0], _chain(node)
        assert isinstance(x, fx.Node)
        wide = G.rank(x) > 2 and str(G.shape(x)[-1]) == str(G.shape(flat)[-1])
        if wide and all(user.target is _RESHAPE for user in chain[-1].users):
            _rebuild(chain, x)


def _chain(node: fx.Node) -> list[fx.Node]:
    """The layer, and as far as each has one reader, what works on the result along its last
    dimension: such layers, and what goes element by element."""
    chain, readers = [node], list(node.users)
    while len(readers) == 1 and readers[0].target in _ANY_RANK | ELEMENTWISE:
        chain.append(readers[0])
        readers = list(chain[-1].users)
    return chain


def _rebuild(chain: list[fx.Node], x: fx.Node) -> None:
    result = x
    for node in chain:
        kwargs = node.kwargs
        result = G.add_call(node, node.target, (result, *node.args[1:]), G.name_of(node), node)
        result.kwargs = kwargs
    for reader in list(chain[-1].users):
        reader.args = (result, *reader.args[1:])
        if str(G.shape(reader)) == str(G.shape(result)):
            G.replace(reader, result)
    for node in reversed(chain):
        node.graph.erase_node(node)
