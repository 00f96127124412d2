"""Multiply-accumulates of a node, for one sample."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from qtool import graph as G
from qtool.plan.ops import row_of

__all__ = ["macs"]

COUNTED = frozenset({"conv", "conv_transpose", "linear", "matmul", "attention"})


def hint(size: Any) -> int:
    """A size as a number; a symbolic one has the value it was captured with."""
    if isinstance(size, torch.SymInt):
        found = size.node.hint
        return int(found) if found is not None else 1
    return int(size)


def macs(node: fx.Node, batch: int) -> int:
    """MACs of one sample at the captured sizes; 0 for anything but layers with weights, products
    of activations and attention, which is two of them."""
    row = row_of(node)
    if row is None or row.key not in COUNTED:
        return 0
    sizes = [hint(s) for s in G.shape(node)]
    other = node.args[1]
    assert isinstance(other, fx.Node)
    weight = [hint(s) for s in G.shape(other)]
    if row.key == "attention":  # queries x keys, then weights x values: [.., L, S] in between
        query = node.args[0]
        assert isinstance(query, fx.Node)
        return (prod(hint(s) for s in G.shape(query)) + prod(sizes)) * weight[-2] // batch
    if row.key == "conv_transpose":
        source = node.args[0]
        assert isinstance(source, fx.Node)
        positions = prod(hint(s) for s in (G.shape(source)[0], *G.shape(source)[2:]))
        return prod(weight) * positions // batch
    if row.key == "matmul":
        depth = weight[-2] if len(weight) > 1 else weight[0]
    else:
        depth = prod(weight[1:])
    return prod(sizes) * depth // batch
