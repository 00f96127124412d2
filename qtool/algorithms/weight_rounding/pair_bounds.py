"""Bounds on codes for a layer whose target limits the sums of pairs of weights."""

from __future__ import annotations

import torch
from torch import fx

from qtool.algorithms.weight_rounding.gptq import PairBounds
from qtool.core import graph as G
from qtool.core.graph.torch_ops import groups_of
from qtool.core.types import QuantParams
from qtool.planning.plan import QuantPlan
from qtool.planning.targets import target
from qtool.planning.targets.saturation import pair_partners


def pair_bounds(
    plan: QuantPlan, node: fx.Node, matrix: torch.Tensor, params: QuantParams, shape: torch.Size
) -> PairBounds | None:
    """Return bounds on the codes of a layer's weights, or None where no pair can saturate.

    Args:
        matrix: the weights as [groups, out / groups, in * kernel].
        params: of the weight.
        shape: of the weight itself, output channels first.
    """
    limit, decision = target(plan.target).saturation_limit, plan.decision(G.name_of(node))
    if limit is None or decision is None or not decision.computes_on_codes:
        return None
    if 2 * max(-params.qtype.qmin, params.qtype.qmax) <= limit:
        return None
    levels = params.qtype.qmin, params.qtype.qmax
    meets = pair_partners(shape, groups_of(node))
    return PairBounds(matrix.shape[:2], meets, *levels, limit)
