"""Results that a file has with finer codes than the plan's: those of small linear layers in TFLite.

A kernel on codes returns int8, 255 steps over the range of its result. That is the largest error of
a small classifier whose caller reads floats. So the file computes such a layer several times, each
time a part of the range (plugins/tflite/export/linear.py), and the parts have finer codes.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops import row_of
from qtool.core.quant_params import QuantParams
from qtool.core.types import QType
from qtool.planning.fake_quantize import QuantPoint
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.targets import target

PARTS = (8, 4, 2)
MARGIN = 1.5  # values beyond the calibrated range are not clipped, as they are not in float
_MAX_SHARE = 0.15  # of the MACs of a network: what parts may add
_BITS = 8  # of codes that have parts


def number_of_parts(plan: QuantPlan, layer: fx.Node) -> int:
    """Return in how many parts a layer whose result is an output has it, the more the smaller it
    is; 1 for one that is not small, or no linear layer on codes, and for targets without parts."""
    if not target(plan.target).results_in_parts:
        return 1
    row, decision = row_of(layer), plan.decision(G.name_of(layer))
    if row is None or row.key != "linear" or decision is None or len(layer.users) > 1:
        return 1
    if decision.execution is not Execution.INTEGER:
        return 1
    total = sum(d.macs for d in plan.nodes)
    return next((n for n in PARTS if (n - 1) * decision.macs <= _MAX_SHARE * total), 1)


def fine_params(out: QuantParams, parts: int) -> QuantParams:
    """Return the parameters of the parts together, over a range that is MARGIN times as wide."""
    whole = float(out.scale) * out.qtype.levels
    least = float(out.scale) * (out.qtype.qmin - int(out.zero_point))
    levels = parts * out.qtype.levels
    scale = torch.tensor(MARGIN * whole / levels, dtype=torch.float32)
    zero = round(((MARGIN - 1) / 2 * whole - least) / float(scale))
    qtype = QType("parts", 0, levels, "int32")
    return QuantParams(qtype, scale, torch.tensor(zero))


def refine_results(module: fx.GraphModule, plan: QuantPlan) -> None:
    """Give the points of results in parts their finer codes, in place.

    Args:
        module: graph with the points of the plan.
        plan: plan of the module.
    """
    for output in G.output_nodes(module.graph):
        point = G.submodule(module, output)
        if not isinstance(point, QuantPoint) or len(output.users) > 1:
            continue
        params, layer = point.params, G.source(output)
        parts = number_of_parts(plan, layer) if layer.op == "call_function" else 1
        if params is not None and params.qtype.bits <= _BITS and parts > 1:
            point.set_params(fine_params(params, parts))
