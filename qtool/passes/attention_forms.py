"""Attention of any rank becomes attention of rank 4, the only rank that the exporter supports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.passes.rewrite_rules import Rule, insert_before

aten = torch.ops.aten


def _attention(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Return an attention of rank 4, the rank of the exporter: [batch, heads, time, features]."""
    *tensors, mask = (*node.args[:3], G.argument(node, 3, "attn_mask"))
    ranks = {G.rank(t) for t in tensors}  # type: ignore[arg-type]  # nodes
    rank = G.rank(node)
    if ranks != {rank} or rank == 4:
        return None
    if rank < 4:
        lifted = [_lifted(node, t, rank, f"input{i}") for i, t in enumerate(tensors)]
        mask = _lifted(node, mask, rank, "mask") if mask is not None and G.rank(mask) == 3 else mask
        result = _attend(node, lifted, mask)
        result = insert_before(node, aten.squeeze.dim, (result, 1), "squeeze1" if rank == 2 else "")
        return result if rank == 3 else insert_before(node, aten.squeeze.dim, (result, 0))
    lead = G.shape(node)[: rank - 3]
    if sum(not isinstance(s, int) for s in lead) > 1 or (mask is not None and G.rank(mask) > 3):
        return None
    if any(not G.same_sizes(G.shape(t)[: rank - 3], lead) for t in tensors):  # type: ignore[arg-type]  # nodes
        return None
    flat = [
        insert_before(node, aten.flatten.using_ints, (t, 0, rank - 4), f"input{i}")
        for i, t in enumerate(tensors)
    ]
    sizes = [s if isinstance(s, int) else -1 for s in lead]
    return insert_before(node, aten.unflatten.int, (_attend(node, flat, mask), 0, sizes))


def _lifted(node: fx.Node, x: Any, rank: int, part: str) -> fx.Node:
    batched = (
        x if rank == 3 else insert_before(node, aten.unsqueeze.default, (x, 0), f"{part}.batch")
    )
    return insert_before(node, aten.unsqueeze.default, (batched, 1), part)


def _attend(node: fx.Node, tensors: list[fx.Node], mask: Any) -> fx.Node:
    rest = {k: v for k, v in node.kwargs.items() if k != "attn_mask"}
    product = insert_before(node, node.target, (*tensors, mask, *node.args[4:]), "product")
    product.kwargs = rest
    return G.infer(product)


ATTENTION_RULES: Mapping[Any, Rule] = {aten.scaled_dot_product_attention.default: _attention}
