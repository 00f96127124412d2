"""Attention heads that share keys and values read them without a copy for each head.

Llamas have fewer heads of keys and values than of queries (Ainslie et al., "GQA: Training
Generalized Multi-Query Transformer Models from Multi-Head Checkpoints", 2023), and their modules
copy each for all heads that read it. The copy is as large as the cache and is made in every step.
The queries of a group, concatenated, give the same products as one head with more rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.passes.graph_pass import GraphPass, first_match
from qtool.passes.rewrite_rules import insert_before

aten = torch.ops.aten


def _shared(node: fx.node.Argument) -> fx.Node | None:
    """Return x if a node is x [batch, groups, time, width] with each group repeated in place."""
    if not isinstance(node, fx.Node) or node.target is not aten.reshape.default:
        return None
    wide = node.args[0]
    if not isinstance(wide, fx.Node) or wide.target is not aten.expand.default:
        return None
    single = wide.args[0]
    if not isinstance(single, fx.Node) or single.target is not aten.unsqueeze.default:
        return None
    x, axis = G.source(single), single.args[1]
    shapes = G.shape(x), G.shape(wide), G.shape(node)
    if axis not in (2, -3) or [len(s) for s in shapes] != [4, 5, 4]:
        return None
    before, between, after = shapes
    copied = (*between[:2], *between[3:])
    same = G.same_sizes(before, copied) and G.same_sizes(between[3:], after[2:])
    same &= G.same_sizes(before[:1], after[:1])
    heads = (before[1], between[2], after[1])
    if not same or not all(isinstance(size, int) for size in heads):
        return None
    return x if after[1] == before[1] * between[2] else None


def _parts(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node, Any] | None:
    """Return query, key, value (without copies) and mask of an attention with shared heads."""
    if node.target is not aten.scaled_dot_product_attention.default:
        return None
    query, mask = node.args[0], G.argument(node, 3, "attn_mask")
    if G.argument(node, 5, "is_causal", False) or not isinstance(query, fx.Node):
        return None
    shared = node.args[1:3] if node.kwargs.get("enable_gqa") else map(_shared, node.args[1:3])
    key, value = shared
    if not isinstance(key, fx.Node) or not isinstance(value, fx.Node):
        return None
    ranks = {G.rank(n) for n in (query, key, value)}
    heads, groups = (G.shape(n)[1] if ranks == {4} else None for n in (query, key))
    if not isinstance(heads, int) or not isinstance(groups, int) or G.shape(value)[1] != groups:
        return None
    fits = heads > groups and not heads % groups and (mask is None or _fits(mask))
    return (query, key, value, mask) if fits else None


def _fits(mask: fx.node.Argument) -> bool:
    """Return whether all heads have the same mask."""
    return isinstance(mask, fx.Node) and (G.rank(mask) == 2 or G.shape(mask)[-3] == 1)


def _rewrite(module: fx.GraphModule) -> int:
    count, masks = 0, dict[tuple[Any, int], fx.Node]()
    for node in G.calls(module.graph):
        if (parts := _parts(node)) is None:
            continue
        query, key, value, mask = parts
        groups = int(G.shape(key)[1])
        times = int(G.shape(query)[1]) // groups
        if mask is not None and G.shape(mask)[-2] != 1:
            if (mask, times) not in masks:
                masks[mask, times] = insert_before(
                    node, aten.cat.default, ([mask] * times, -2), "mask"
                )
            mask = masks[mask, times]
        _group(node, query, (key, value, mask), groups)
        count += 1
    return count


def _group(node: fx.Node, query: fx.Node, rest: tuple[Any, ...], groups: int) -> None:
    """Concatenate the queries of each group as one head; split them behind the attention."""
    batch, heads, _, width = G.shape(query)
    if not isinstance(batch, int):
        batch = insert_before(node, aten.sym_size.int, (query, 0), "size")
    rows = insert_before(node, aten.reshape.default, (query, [batch, groups, -1, width]), "groups")
    kwargs = {k: v for k, v in node.kwargs.items() if k not in ("attn_mask", "enable_gqa")}
    attended = insert_before(node, node.target, (rows, *rest, *node.args[4:]))
    attended.kwargs = kwargs
    args = (G.infer(attended), [batch, heads, -1, G.shape(node)[-1]])
    name = f"{G.name_of(node)}.heads"
    G.replace(node, G.add_call(node, aten.reshape.default, args, name, node, node))


grouped_queries = GraphPass("grouped_queries", _rewrite, first_match(_parts))
