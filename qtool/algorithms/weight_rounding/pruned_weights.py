"""Pruned weights, whose zeros no step fills: sparse kernels and compression depend on them.

A weight counts as pruned by its exact zeros, of any pattern: 2:4, blocks, channels or single
weights. A dense trained weight has none, and one that was stored in 8 bits about 2 %.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G

PRUNED = 0.1
"""Share of exact zeros from which a weight counts as pruned."""


def is_pruned(weight: torch.Tensor, layer: fx.Node) -> bool:
    """Return whether the float weight of a layer is pruned; zeros between groups do not count."""
    merged: int = layer.meta.get(G.MERGED_GROUPS, 1)
    own = weight.numel() // merged
    return own - int(weight.count_nonzero()) >= max(1, PRUNED * own)
