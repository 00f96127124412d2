"""The inference BatchNorms of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G

aten = torch.ops.aten

STATISTICS = slice(3, 5)
"""Positions of mean and variance in the arguments."""

EPS_POSITION: Mapping[Any, int] = {  # position of the argument
    aten.batch_norm.default: 7,
    aten._native_batch_norm_legit_no_training.default: 6,
}


def batch_norms(module: fx.GraphModule) -> list[fx.Node]:
    """Return the BatchNorms of a captured graph that use running statistics."""
    return [
        node
        for node in G.calls(module.graph)
        if node.target in EPS_POSITION
        and not (node.target is aten.batch_norm.default and node.args[5])  # batch statistics
        and all(isinstance(n, fx.Node) and n.op == "get_attr" for n in node.args[STATISTICS])
    ]


def are_untrained(module: fx.GraphModule, nodes: Sequence[fx.Node]) -> bool:
    """Return whether these BatchNorms all have the statistics of initialisation, 0 and 1."""
    return bool(nodes) and all(
        bool((G.tensor(module, source) == value).all())
        for node in nodes
        for source, value in zip(node.args[STATISTICS], (0, 1), strict=True)
        if isinstance(source, fx.Node)
    )
