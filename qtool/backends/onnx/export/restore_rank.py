"""Restores the rank of inputs for layers whose kernels take any number of dimensions.

Layers of a graph have two dimensions, as integer Gemms do. Those on weights in blocks and those
that quantize their input at run time need no reshape before and behind them.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.flatten_linear import stays_flat
from qtool.passes.rewrite_rules import leading_sizes

_ANY_RANK = frozenset({torch_ops.linear_nbits, torch_ops.dynamic_linear})
_RESHAPE = torch.ops.aten.reshape.default


def restore_rank(module: fx.GraphModule) -> None:
    """Remove the reshapes around such layers where all readers reshape the result, in place."""
    for node in G.calls(module.graph):
        flat = node.args[0] if node.target in _ANY_RANK else None
        if not isinstance(flat, fx.Node) or flat.target is not _RESHAPE:
            continue
        chain = _chain(node)
        readers = list(chain[-1].users)
        if readers and all(user.target is _RESHAPE for user in readers):
            unflattened = _unflattened(flat, readers)
            if unflattened is not None:
                _rebuild(chain, unflattened)


def _unflattened(flat: fx.Node, readers: list[fx.Node]) -> fx.Node | None:
    """Return the tensor before flattening, None if the layer cannot read it.

    If readers split the leading dimensions again, only the last dimensions (heads of an attention)
    stay flattened.
    """
    x = flat.args[0]
    assert isinstance(x, fx.Node)
    width, shapes = G.shape(flat)[-1], [G.shape(reader) for reader in readers]
    if G.rank(x) > 2 and str(G.shape(x)[-1]) == str(width):
        return x
    count = len(shapes[0]) - 1
    before = G.shape(x)[:count]
    if not 1 < count < G.rank(x) or not all(G.same_sizes(s[:-1], before) for s in shapes):
        return None
    sizes = [*leading_sizes(flat, x, count), width]
    return G.add_call(flat, _RESHAPE, (x, sizes), f"{G.name_of(flat)}.deep", flat)


def _chain(node: fx.Node) -> list[fx.Node]:
    """Return the layer and the operators behind it along its last dimension.

    These are further such layers and elementwise operators, while each has one reader.
    """
    chain, readers = [node], list(node.users)
    while len(readers) == 1 and (readers[0].target in _ANY_RANK or stays_flat(readers[0])):
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
