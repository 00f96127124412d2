"""Weights that training has moved beyond the limit of the target's pairs are moved back.

A conversion rounds weights within the limit. Who trains a quantized model afterwards moves them by
a few codes, of which some pairs exceed it: the exported file would saturate on some CPUs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.pipeline import replay_changes
from qtool.algorithms.registry import STEPS
from qtool.core import graph as G
from qtool.core.graph.executor import Executor
from qtool.core.graph.torch_ops import groups_of
from qtool.planning.fake_quantize import insert_points, quant_points
from qtool.planning.plan import Kind, QuantPlan
from qtool.planning.targets import target
from qtool.planning.targets.saturation import shrink_pairs

if TYPE_CHECKING:
    from qtool.conversion.quantized import Quantized


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


# The network of a quantized model with the weights from before they were rounded.
#
# Weight rounding (GPTQ), learned scales and training write the rounded weights into the graph:
# their points change nothing any more, and a layer would look as if it made no error. The float
# model with the recorded changes has the weights from before.


def unrounded_executor(model: Quantized) -> Executor:
    """Return an executor whose points on weights, if off, give the weights from before rounding.

    If on, they give the codes of the quantized model.

    Raises:
        VerificationError: a change cannot be made again.
    """
    macs = {d.node: d.macs for d in model.plan.nodes}
    executor = Executor(replace(model.graph, module=_unrounded_module(model)), macs)
    coded = Executor(replace(model.graph, module=model.module))
    executor.quantized_constants = {
        executor.indices[name]: coded.quantized_constants[index]
        for name, index in coded.indices.items()
        if index in coded.quantized_constants
    }
    return executor


def _unrounded_module(model: Quantized) -> fx.GraphModule:
    plan = model.plan
    start = ConversionState.start(
        model.captured, model.captured.plan(plan.target, plan.observer, plan.recipe)
    )
    graph = replay_changes(STEPS, start, model.changes).graph
    module = insert_points(G.clone_with_parameters(graph.module), plan)
    for name, point in quant_points(module).items():
        point.set_params(model.parameters[name])
    return module
