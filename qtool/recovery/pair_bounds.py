"""Bounds for the rounding of a layer whose target limits pairs of weights."""

from __future__ import annotations

import torch
from torch import fx

from qtool import graph as G
from qtool.graph.torch_ops import groups_of
from qtool.plan import QuantPlan
from qtool.recovery.gptq import PairBounds
from qtool.targets import target
from qtool.targets.saturation import partners
from qtool.types import QuantParams

__all__ = ["pair_bounds"]


def pair_bounds(
    plan: QuantPlan, node: fx.Node, matrix: torch.Tensor, params: QuantParams, shape: torch.Size
) -> PairBounds | None:
    """Bounds on the codes of a layer's weights, or None where no pair can saturate.

    Args:
        matrix: the weights as [groups, out / groups, in * kernel]. shape: of the weight itself,
            output channels first. params: of the weight.
    """
    limit, decision = target(plan.target).pair_limit, plan.decision(G.name_of(node))
    if limit is None or decision is None or not decision.computes_on_codes:
        return None
    if 2 * max(-params.qtype.qmin, params.qtype.qmax) <= limit:
        return None
    levels = params.qtype.qmin, params.qtype.qmax
    meets = partners(shape, groups_of(node))
    return PairBounds(matrix.shape[:2], meets, *levels, limit)
