"""Computes scale and zero point of every point of a plan from statistics and weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite

import torch
from torch import fx
from torch.nn import functional as F

from qtool import observers
from qtool.calibration.calibration import Calibration
from qtool.calibration.portable_scales import make_portable
from qtool.calibration.scale_alignment import Range, align_ranges
from qtool.core import graph as G
from qtool.core.errors import CalibrationError
from qtool.core.graph.torch_ops import groups_of
from qtool.core.quant_params import QuantParams, fixed_params
from qtool.core.remedies import CallEdit, DataEdit
from qtool.core.types import INT32, Derived, Fixed, Observed, Requantized, SharedWith
from qtool.planning.plan import Kind, Point, QuantPlan
from qtool.planning.sharing import clamp_bounds
from qtool.planning.targets import saturation, target

BIAS_LIMIT = 2.0**30  # half of int32; the products have the other half
BIAS_ONLY_CODES = 2.0**22  # codes for the bias of a channel whose weights are all zero


@dataclass(frozen=True)
class Parameters:
    """Quantization parameters of a plan.

    Attributes:
        params: point name -> parameters.
        notes: adjustments, for the user.
    """

    params: dict[str, QuantParams]
    notes: tuple[str, ...] = ()


@dataclass
class _Solver:
    module: fx.GraphModule
    plan: QuantPlan
    calibration: Calibration
    nodes: dict[str, fx.Node]
    params: dict[str, QuantParams] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def source(self, point: Point) -> torch.Tensor:
        return G.read_values(G.tensor(self.module, self.nodes[point.edges[0].source]))

    def constant(self, point: Point) -> str:
        """Return the attribute of the module that a weight's point quantizes."""
        return str(self.nodes[point.edges[0].source].target)


def solve_parameters(
    module: fx.GraphModule, plan: QuantPlan, calibration: Calibration
) -> Parameters:
    """Return the parameters of every point of a plan.

    Args:
        module: the float graph, which has the weights.
        plan: plan of the graph.
        calibration: made with this plan.

    Raises:
        CalibrationError: the calibration lacks a point of the plan, or has no values for it.
    """
    _check(plan, calibration)
    solver = _Solver(module, plan, calibration, {G.name_of(n): n for n in module.graph.nodes})
    ranges = {p.name: _observed_range(solver, p) for p in plan.observed()}
    ranges = align_ranges(module.graph, plan, ranges)
    for point in plan:
        if isinstance(point.spec, Fixed):
            solver.params[point.name] = fixed_params(point.spec)
        elif isinstance(point.spec, Observed) and point.spec.block is not None:
            values, known = solver.source(point).cpu(), calibration.scales.get(point.name)
            solver.params[point.name] = known or _solve_blocks(values, point.spec)
            solver.notes += _zero_channel_notes(point, values)
        elif isinstance(point.spec, Observed):
            ends = ranges.get(point.name)
            solver.params[point.name] = _solve_observed(solver, point, point.spec, ends)
    for point in plan:
        if isinstance(point.spec, SharedWith):
            shared = solver.params[plan.root(point.name)]
            factor = point.spec.factor
            scaled = shared.scale if factor == 1.0 else shared.scale * factor
            solver.params[point.name] = replace(shared, scale=scaled)
    for point in plan:
        if isinstance(point.spec, Requantized):
            solver.params[point.name] = _solve_requantized(solver, point.spec)
    for point in plan:
        if isinstance(point.spec, Derived):
            _solve_bias(solver, point, point.spec)
    params, notes = make_portable(module.graph, plan, solver.params)
    changes = _changed_scales(calibration.scales, params)
    return Parameters(params, (*calibration.notes, *solver.notes, *notes, *changes))


def _check(plan: QuantPlan, calibration: Calibration) -> None:
    calibration.check_target(plan.target)
    missing = [p.name for p in plan.observed() if p.name not in calibration.statistics]
    if missing:
        raise CalibrationError(
            f"the calibration was made with another recipe or mode (it lacks '{missing[0]}')",
            CallEdit("give the recipe it was made with"),
            CallEdit("calibrate again with this one"),
        )
    for point in plan.observed():
        if calibration.statistics[point.name].empty:
            raise CalibrationError(
                f"calibration saw no values of tensor '{point.name}'",
                DataEdit("give data that reaches it"),
            )


def _observed_range(solver: _Solver, point: Point) -> Range:
    assert isinstance(point.spec, Observed)
    if (known := solver.calibration.scales.get(point.name)) is not None:
        return _range_of_codes(known)
    statistic = solver.calibration.statistics[point.name]
    observer = solver.calibration.specs[point.name]
    return observers.range_of(observer, statistic, point.spec.qtype, point.spec.symmetric)


def _solve_observed(
    solver: _Solver, point: Point, spec: Observed, ends: Range | None
) -> QuantParams:
    """Return the parameters of a point; `ends` is its range, None for that of a weight."""
    params = solver.calibration.scales.get(point.name)
    if params is None:
        params = _solve_range(solver, point, spec, ends)
    limit = target(solver.plan.target).saturation_limit
    if point.kind is Kind.WEIGHT and limit is not None and _feeds_integer_kernel(solver, point):
        return _widen_for_saturation(solver, point, params, limit)
    return params


def _solve_range(solver: _Solver, point: Point, spec: Observed, ends: Range | None) -> QuantParams:
    """Return the parameters of the range of a point, as for `_solve_observed`."""
    low, high = ends if ends is not None else _weight_range(solver.source(point), spec)
    params = observers.solve(low, high, spec.qtype, spec.symmetric, spec.axis)
    solver.notes += _range_notes(point, low, high, params)
    if ends is not None and spec.axis is None and not (low.any() or high.any()):
        source = point.edges[0].source if point.edges else point.name  # readers have other types
        low, high = _clamp_range(solver.nodes[source])
        params = observers.solve(low, high, spec.qtype, spec.symmetric, spec.axis)
    return replace(params, scale=params.scale.cpu(), zero_point=params.zero_point.cpu())


def _range_of_codes(params: QuantParams) -> Range:
    """Return the values of the lowest and the highest code."""
    zero, scale = params.zero_point.double(), params.scale.double()
    return (params.qtype.qmin - zero) * scale, (params.qtype.qmax - zero) * scale


def _changed_scales(
    known: Mapping[str, QuantParams], params: Mapping[str, QuantParams]
) -> Iterator[str]:
    """Yield notes on the scales of another tool that had to change."""
    for name, own in known.items():
        change = (params[name].scale.double() / own.scale.double() - 1).abs()
        if own.axis is None and bool(change > 0):
            yield (
                f"{name}: scale changed by {float(change):.1g} of it, so that all CPUs compute the "
                "same codes"
            )
        elif own.axis is not None and bool((change > 0).any()):
            yield (
                f"{name}: scale widened in {int((change > 0).sum())} of {change.numel()} channels, "
                "whose sums could saturate on CPUs without VNNI, or whose bias would overflow"
            )


def _clamp_range(node: fx.Node) -> Range:
    """Return the range of the clamp behind a tensor that was always zero.

    The runtime then fuses the clamp.
    """
    low, high = (0.0 if b is None or not isfinite(b) else b for b in clamp_bounds(node))
    return torch.tensor(min(low, 0.0), dtype=torch.float32), torch.tensor(
        max(high, 0.0), dtype=torch.float32
    )


def _weight_range(weight: torch.Tensor, spec: Observed) -> Range:
    rows = weight.reshape(1, -1) if spec.axis is None else weight.movedim(spec.axis, 0).flatten(1)
    low, high = observers.range_of_rows(spec.observer, rows, spec.qtype, spec.symmetric)
    return (low[0], high[0]) if spec.axis is None else (low, high)


def _range_notes(
    point: Point, low: torch.Tensor, high: torch.Tensor, params: QuantParams
) -> Iterator[str]:
    """Yield notes on a range that is empty, too small or too large for a scale."""
    span = torch.maximum(high.double().clamp(min=0), -low.double().clamp(max=0))
    needed = (high.double().clamp(min=0) - low.double().clamp(max=0)) / params.qtype.levels
    scale = params.scale.double().cpu()
    channels = f" in {{}} of {scale.numel()} channels" if scale.dim() else ""
    empty = int((span == 0).sum())
    if empty:
        where = "weights are" if point.kind is Kind.WEIGHT else "on the calibration data it is"
        yield f"{point.name}: {where} zero{channels.format(empty)}"
    raised = int(((span > 0) & (scale <= observers.MIN_SCALE) & (needed.cpu() < scale / 2)).sum())
    if raised:
        yield (
            f"{point.name}: values so small{channels.format(raised)} that a scale of 2^-60 holds "
            "them, at a large loss of precision; scale the layer up"
        )
    clipped = int((scale < needed.cpu() * (1 - 1e-3)).sum())
    if clipped:
        yield (
            f"{point.name}: values so large{channels.format(clipped)} that their codes would be "
            "Inf; they are clipped; scale the layer down"
        )


def _zero_channel_notes(point: Point, weight: torch.Tensor) -> Iterator[str]:
    """Yield a note on the channels of a block-wise weight that are all zero."""
    channels = weight.flatten(1)
    if empty := int((channels == 0).all(1).sum()):
        yield f"{point.name}: weights are zero in {empty} of {len(channels)} channels"


def _solve_requantized(solver: _Solver, spec: Requantized) -> QuantParams:
    """Return the parameters of a point with another bit width than its source.

    With more bits the range is the source's; with fewer bits it is estimated again for that width,
    if the source is observed.
    """
    source, shared = solver.params[spec.point], solver.plan.point(spec.point).spec
    root = solver.plan.point(solver.plan.root(spec.point))
    symmetric = spec.qtype in target(solver.plan.target).types.symmetric
    if spec.qtype.bits < source.qtype.bits and isinstance(root.spec, Observed):
        observer = solver.calibration.specs[root.name]
        statistic = solver.calibration.statistics[root.name]
        factor = shared.factor if isinstance(shared, SharedWith) else 1.0
        ends = observers.range_of(observer, statistic, spec.qtype, symmetric)
        low, high = (bound * factor for bound in ends)
    else:
        low, high = _range_of_codes(source)
    return observers.solve(low, high, spec.qtype, symmetric, None)


def _feeds_integer_kernel(solver: _Solver, weight: Point) -> bool:
    """Return whether an integer kernel multiplies by these codes.

    A weight that several layers share is stored once (an embedding that is also the last layer).
    """
    same = (p for p in solver.plan if p.kind is Kind.WEIGHT and p.spec == weight.spec and p.edges)
    users = (
        solver.plan.decision(p.edges[0].user)
        for p in same
        if p is weight or solver.constant(p) == solver.constant(weight)
    )
    return any(user is not None and user.computes_on_codes for user in users)


def _widen_for_saturation(
    solver: _Solver, point: Point, params: QuantParams, limit: int
) -> QuantParams:
    """Widen the weight scale where the target's sums of two products could saturate."""
    groups = groups_of(solver.nodes[point.edges[0].user])
    return saturation.widen_scales(solver.source(point).cpu(), params, limit, groups)


def _solve_blocks(weight: torch.Tensor, spec: Observed) -> QuantParams:
    """Return one scale per `block` values along the axis; the last block is padded with zeros."""
    assert spec.axis is not None
    assert spec.block is not None
    rows = weight.movedim(spec.axis, -1)
    blocks = F.pad(rows, (0, -rows.shape[-1] % spec.block)).unflatten(-1, (-1, spec.block))
    values = blocks.reshape(-1, spec.block)
    low, high = observers.range_of_rows(spec.observer, values, spec.qtype, spec.symmetric)
    params = observers.solve(low, high, spec.qtype, spec.symmetric, 0)
    scale, zero = (
        t.reshape(blocks.shape[:-1]).movedim(-1, spec.axis)
        for t in (params.scale, params.zero_point)
    )
    return QuantParams(spec.qtype, scale, zero, spec.axis, spec.block)


def _scale_for_bias_only_channels(
    solver: _Solver, spec: Derived, weight: QuantParams, bias: torch.Tensor
) -> QuantParams:
    """Choose the scale of all-zero channels for their bias, since any scale holds the weights.

    Such channels are pruned, or have a BatchNorm gamma of 0.

    Args:
        solver: has the weights.
        spec: spec of the bias.
        weight: parameters of the weight.
        bias: absolute values over the input's scale, float64 [channels].
    """
    values = solver.source(solver.plan.point(spec.weight)).cpu()
    axis = weight.axis
    if axis is None:
        return weight
    zero = values.movedim(axis, 0).flatten(1).abs().amax(1) == 0
    scale = torch.where(zero & (bias > 0), (bias / BIAS_ONLY_CODES).float(), weight.scale)
    return replace(weight, scale=scale.clamp(min=observers.MIN_SCALE))


def _solve_bias(solver: _Solver, point: Point, spec: Derived) -> None:
    """Set the bias scale to float32(input scale * weight scale).

    Widens the weight scale where the bias would overflow int32: tiny weights with a large bias.
    """
    data, weight = solver.params[spec.input], solver.params[spec.weight]
    bias = solver.source(point).double().abs().cpu()
    weight = _scale_for_bias_only_channels(solver, spec, weight, bias / data.scale.double())
    smallest = bias / (data.scale.double() * BIAS_LIMIT)
    too_small = weight.scale.double() < smallest
    if bool(too_small.any()):
        needed = smallest if weight.axis is not None else smallest.max()
        widened = torch.maximum(weight.scale.double(), needed * (1 + 2.0**-20)).float()
        weight = replace(weight, scale=widened)
        solver.notes.append(
            f"{spec.weight}: scale widened in {int(too_small.sum())} of {len(bias)} channels, "
            "whose bias would overflow int32"
        )
    solver.params[spec.weight] = weight
    zero = torch.zeros_like(weight.zero_point)
    solver.params[point.name] = QuantParams(INT32, data.scale * weight.scale, zero, axis=0)
