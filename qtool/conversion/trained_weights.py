"""Weights that training has moved beyond the limit of the target's pairs are moved back.

A conversion rounds weights within the limit. Who trains a quantized model afterwards moves them by
a few codes, of which some pairs exceed it: the exported file would saturate on some CPUs.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph.torch_ops import groups_of
from qtool.planning.fake_quantize import quant_points
from qtool.planning.plan import Kind, QuantPlan
from qtool.planning.targets import target
from qtool.planning.targets.saturation import shrink_pairs


@torch.no_grad()
def restore_pair_limits(graph: fx.Graph, module: fx.GraphModule, plan: QuantPlan) -> int:
    """Set weights whose codes exceed the target's limit of pairs to the nearest that do not.

    Args:
        graph: the float graph that `plan` is of.
        module: module with its quantization points and weights, which change in place.
        plan: selects the weights of integer kernels.

    Returns:
        The number of changed weights.
    """
    limit, changed = target(plan.target).saturation_limit, 0
    if limit is None:
        return 0
    nodes, points = {G.name_of(node): node for node in graph.nodes}, quant_points(module)
    for point in plan:
        params = points[point.name].params if point.kind is Kind.WEIGHT else None
        decision = plan.decision(point.edges[0].user) if params is not None else None
        if params is None or decision is None or not decision.computes_on_codes or params.block:
            continue
        weight = G.tensor(module, nodes[point.edges[0].source])
        codes = params.quantize(weight)
        groups = groups_of(nodes[point.edges[0].user])
        kept = shrink_pairs(codes, params.axis, limit, groups)
        moved = kept != codes
        if count := int(moved.sum()):
            weight.copy_(torch.where(moved, params.dequantize(kept), weight))
            changed += count
    return changed
