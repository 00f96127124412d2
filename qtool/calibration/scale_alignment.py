"""Aligns the scales of concats and additions: one range for a concat, one scale for a sum.

A concat requantizes an input whose range differs from its own. Onto a range that is 1 % wider, most
codes stay the same number: all values grow by 1 %, a bias that does not average out and that chains
of concats (DenseNet) accumulate. With one range for input and output codes are copied, which is
exact and faster.

A quantized sum is rounded once more. If both operands and the result have one scale, whatever their
zero points, it is exact: a residual stream then accumulates only the rounding of its branches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from qtool import observers
from qtool.core import graph as G
from qtool.core.ops import Role, row_of
from qtool.core.types import Observed
from qtool.planning.plan import Decision, Execution, QuantPlan

Range = tuple[torch.Tensor, torch.Tensor]

MAX_WIDENING = math.sqrt(2)
"""With scales a of the input and b of the result, readers of the input get rounding noise a^2 and
those of the result a^2 + b^2. With b for both they get b^2 each: less in total if b^2 < 2 a^2."""

_UNBOUNDED = (-math.inf, math.inf)


@dataclass
class _SharedRange:
    """Points with one range.

    Attributes:
        names: names of the points.
        low, high: the range.
        narrowest: smallest scale that a point has on its own.
        limits: bounds of the range, from fused clamps.
        width: scale of the range.
    """

    names: list[str]
    low: torch.Tensor
    high: torch.Tensor
    narrowest: float
    limits: tuple[float, float]
    width: float


@dataclass
class _EqualScales:
    """Ranges with one scale.

    Attributes:
        groups: the ranges.
        width: their scale.
        sums: number of additions among them, which are exact.
    """

    groups: list[_SharedRange]
    width: float
    sums: int = 0

    @property
    def noise(self) -> float:
        """Rounding noise of all tensors but the sums, which are exact."""
        return (len(self.groups) - self.sums) * self.width**2


def align_ranges(graph: fx.Graph, plan: QuantPlan, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Return the ranges of observed points, aligned at concats and additions."""
    nodes = {G.name_of(n): n for n in graph.nodes}
    limits = clamp_limits(plan, nodes)
    groups = {
        name: _group(plan, [name], ends, limits.get(name, _UNBOUNDED))
        for name, ends in ranges.items()
    }
    zero = {name for name, ends in ranges.items() if not any(bool(end.any()) for end in ends)}
    for output, *inputs in _aligned_points(plan, nodes, concats=True):
        for name in inputs:
            if zero & {name, output}:  # zeros are exact with any range
                continue
            merged = _merge_groups(plan, groups[name], groups[output])
            if merged is not None:
                groups |= dict.fromkeys(merged.names, merged)
    streams = {id(g): _EqualScales([g], g.width) for g in groups.values()}
    for names in _aligned_points(plan, nodes, concats=False):
        if zero & {*names}:
            continue
        parts = {id(streams[id(groups[n])]): streams[id(groups[n])] for n in names}
        stream = _merge_streams(list(parts.values()))
        if stream is not None:
            streams |= {id(g): stream for g in stream.groups}
    aligned = {}
    for name, group in groups.items():
        factor = streams[id(group)].width / group.width
        aligned[name] = (group.low * factor, group.high * factor)
    return aligned


def clamp_limits(plan: QuantPlan, nodes: Mapping[str, fx.Node]) -> dict[str, tuple[float, float]]:
    """Return the bounds of points whose range implements a fused clamp."""
    limits: dict[str, tuple[float, float]] = {}
    for decision in plan.nodes:
        node = nodes.get(decision.node)
        if node is None or decision.execution is not Execution.FUSED or decision.output is None:
            continue
        row = row_of(node)
        low, high = row.bounds(node) if row is not None else (None, None)
        root = plan.root(decision.output)
        old = limits.get(root, _UNBOUNDED)
        limits[root] = (
            old[0] if low is None else max(old[0], low),
            old[1] if high is None else min(old[1], high),
        )
    return limits


def _aligned_points(
    plan: QuantPlan, nodes: Mapping[str, fx.Node], concats: bool
) -> Iterator[tuple[str, ...]]:
    """Yield, per quantized concat (or sum of two), the observed points of its output and inputs.

    Inputs whose spec differs from the output's are left out.
    """
    observed = {p.name: p.spec for p in plan.observed()}
    for decision in plan.nodes:
        row = row_of(nodes[decision.node]) if decision.node in nodes else None
        wanted = row is not None and (row.role is Role.JOIN if concats else row.key == "add")
        output = output_point(plan, nodes, decision) if wanted else None
        if output is None:
            continue
        result, factor = plan.origin(output)
        origins = [plan.origin(name) for name in decision.inputs]
        spec = observed.get(result)
        same_spec = [
            n for n, f in origins if spec is not None and (observed.get(n), f) == (spec, factor)
        ]
        if same_spec and (concats or len(same_spec) == len(origins) == 2):
            yield result, *same_spec


def output_point(plan: QuantPlan, nodes: Mapping[str, fx.Node], decision: Decision) -> str | None:
    """Return the output point of a node, or of the clamp that is fused into it."""
    if decision.output is not None:
        return decision.output
    readers = [plan.decision(G.name_of(n)) for n in nodes[decision.node].users]
    fused = [d for d in readers if d is not None and d.execution is Execution.FUSED]
    return fused[0].output if len(fused) == len(readers) == 1 else None


def _group(
    plan: QuantPlan, names: list[str], ends: Range, limits: tuple[float, float]
) -> _SharedRange:
    spec = plan.point(names[0]).spec
    assert isinstance(spec, Observed)
    width = float(observers.solve(*ends, spec.qtype, spec.symmetric, None).scale)
    return _SharedRange(names, *ends, width, limits, width)


def _merge_groups(plan: QuantPlan, one: _SharedRange, other: _SharedRange) -> _SharedRange | None:
    """Return the union of two ranges, unless it is much wider than the narrowest point's."""
    if one is other:
        return None
    ends = torch.minimum(one.low, other.low), torch.maximum(one.high, other.high)
    limits = max(one.limits[0], other.limits[0]), min(one.limits[1], other.limits[1])
    both = _group(plan, [*one.names, *other.names], ends, limits)
    both.narrowest = min(one.narrowest, other.narrowest)
    fits = limits[0] <= float(both.low) and float(both.high) <= limits[1]
    return both if fits and both.width <= MAX_WIDENING * both.narrowest else None


def _merge_streams(parts: list[_EqualScales]) -> _EqualScales | None:
    """Return the streams with one scale if the exact sum saves more noise than wider scales add."""
    merged = _EqualScales(
        [g for stream in parts for g in stream.groups],
        max(stream.width for stream in parts),
        sum(stream.sums for stream in parts) + 1,
    )
    fits = all(float(g.high) * merged.width / g.width <= g.limits[1] for g in merged.groups)
    return merged if fits and merged.noise <= sum(stream.noise for stream in parts) else None
