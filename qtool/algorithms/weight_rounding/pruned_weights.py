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
    own = weight.numel() // layer.meta.get(G.MERGED_GROUPS, 1)
    return own - int(weight.count_nonzero()) >= max(1, PRUNED * own)


def pruned_zeros(weight: torch.Tensor, whole: torch.Tensor, layer: fx.Node) -> torch.Tensor | None:
    """Return where a float weight is zero; None if it is not pruned.

    Args:
        weight: the weight or a part of it, in any form.
        whole: the whole weight, which decides.
        layer: reads it.
    """
    return weight == 0 if is_pruned(whole, layer) else None
