"""A channel shuffle (reshape, transpose, reshape) becomes one gather of channels."""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.passes.graph_pass import pattern_pass

aten = torch.ops.aten


def _groups(last: fx.Node) -> int | None:
    """Return the groups if `last` ends [N,C,..] -> [N,g,C/g,..] -> swap 1, 2 -> [N,C,..]."""
    swap = last.args[0] if last.target is aten.reshape.default else None
    if not isinstance(swap, fx.Node) or swap.target is not aten.transpose.int:
        return None
    first = swap.args[0]
    if not isinstance(first, fx.Node) or first.target is not aten.reshape.default:
        return None
    source = first.args[0]
    if not isinstance(source, fx.Node) or len(first.users) != 1 or len(swap.users) != 1:
        return None
    before, split, after = (G.shape(n) for n in (source, first, last))
    if len(before) < 3 or len(split) != len(before) + 1 or len(after) != len(before):
        return None
    rank = len(split)
    axes = sorted(G.integer(swap, i) % rank for i in (1, 2))
    same = G.same_sizes(before, after) and G.same_sizes(
        (split[0], *split[3:]), before[:1] + before[2:]
    )
    if axes != [1, 2] or not same or not isinstance(split[1], int):
        return None
    return int(split[1])


def _rewrite(module: fx.GraphModule, last: fx.Node, groups: int) -> None:
    source = G.source(G.source(G.source(last)))
    channels, name = int(G.shape(source)[1]), G.name_of(last)
    order = torch.arange(channels).reshape(groups, -1).t().reshape(-1)
    index = G.add_tensor(module, next(iter(module.graph.nodes)), order, f"{name}.order")
    args = (source, 1, index)
    G.replace(last, G.add_call(last, aten.index_select.default, args, name, last))


channel_shuffle = pattern_pass(
    "channel_shuffle",
    _groups,
    _rewrite,
    "one gather of channels replaces two reshapes and a transpose",
)
