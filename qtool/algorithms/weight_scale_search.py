"""The step `weight-scale-search`: weight scales by least squares instead of by the extremes.

A scale from the largest weight of a channel wastes codes on an outlier, which matters at few bits.
Rounding to codes q and fitting scale = <w, q> / <q, q> alternate until neither changes (Lloyd 1982,
for a uniform grid). Needs no data.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.registry import WEIGHT_SCALE_SEARCH
from qtool.calibration.solve_parameters import BIAS_LIMIT
from qtool.core import graph as G
from qtool.core.graph.torch_ops import groups_of
from qtool.core.quant_params import QuantParams
from qtool.core.types import Change, Derived, Observed
from qtool.planning.plan import Kind, Point
from qtool.planning.targets import target
from qtool.planning.targets.saturation import widen_scales

REASON = "weight scales minimise the squared error"
START_FACTORS = (1.0, 0.85, 0.7, 0.55)  # of the scale by extremes; each leads to a local optimum
ITERATIONS = 10


def propose(state: ConversionState) -> ConversionState:
    """Return the state with weight scales of least squared error."""
    assert state.parameters is not None
    params = dict(state.parameters.params)
    nodes = {G.name_of(n): n for n in state.graph.graph.nodes}
    count = 0
    for point in state.plan:
        if not _is_searchable(point):
            continue
        weight = G.tensor(state.graph.module, nodes[point.tensor]).detach().cpu().float()
        fitted = _avoid_saturation(state, point, weight, fit_scales(weight, params[point.name]))
        scales = {
            p.name: params[p.spec.input].scale * fitted.scale
            for p in state.plan
            if isinstance(p.spec, Derived) and p.spec.weight == point.name
        }
        biases = (G.tensor(state.graph.module, nodes[state.plan.point(n).tensor]) for n in scales)
        pairs = zip(biases, scales.values(), strict=True)
        if any(bool((b.detach().cpu().abs() > s * BIAS_LIMIT).any()) for b, s in pairs):
            continue
        params[point.name] = fitted
        params |= {name: replace(params[name], scale=scale) for name, scale in scales.items()}
        count += 1
    solved = replace(state.parameters, params=params)
    return replace(state, parameters=solved).with_change(
        Change(WEIGHT_SCALE_SEARCH.name, count, REASON)
    )


def _avoid_saturation(
    state: ConversionState, point: Point, weight: torch.Tensor, params: QuantParams
) -> QuantParams:
    """Return parameters with scales for which no pair of weights saturates on the target."""
    limit, decision = (
        target(state.plan.target).saturation_limit,
        state.plan.decision(point.edges[0].user),
    )
    if limit is None or decision is None or not decision.computes_on_codes:
        return params
    return widen_scales(weight, params, limit, groups_of(_user(state, point)))


def _user(state: ConversionState, point: Point) -> fx.Node:
    """Return the layer that reads a weight."""
    nodes: dict[str, fx.Node] = {G.name_of(n): n for n in state.graph.graph.nodes}
    return nodes[point.edges[0].user]


def _is_searchable(point: Point) -> bool:
    spec = point.spec
    return (
        point.kind is Kind.WEIGHT
        and isinstance(spec, Observed)
        and spec.symmetric
        and spec.axis is not None
        and spec.block is None
    )


def fit_scales(weight: torch.Tensor, params: QuantParams) -> QuantParams:
    """Return parameters with the scales of least squared error, per channel; never a worse one."""
    assert params.axis is not None
    rows = weight.movedim(params.axis, 0).flatten(1).double()
    qmin, qmax = params.qtype.qmin, params.qtype.qmax
    scale = params.scale.double()[:, None]

    def codes(s: torch.Tensor) -> torch.Tensor:
        return torch.round(rows / s).clamp(qmin, qmax)

    best, least = scale, (rows - codes(scale) * scale).square().sum(1, keepdim=True)
    for start in START_FACTORS:
        scale = params.scale.double()[:, None] * start
        for _ in range(ITERATIONS):
            q = codes(scale)
            power = q.square().sum(1, keepdim=True)
            scale = torch.where(power > 0, (rows * q).sum(1, keepdim=True) / power, scale)
            error = (rows - codes(scale) * scale).square().sum(1, keepdim=True)
            better = (error < least) & (power > 0)
            best, least = torch.where(better, scale, best), torch.where(better, error, least)
    return replace(params, scale=best.flatten().float())
