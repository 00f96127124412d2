"""Grids of tensors that meet: the same for concats, of one step for sums, where that costs little.

A concat rescales an input that others read too and that has a range of its own. Onto a range that
is a hundredth wider, most codes keep their number: all values grow by that hundredth, an error that
no averaging takes away, and that chains of concats (DenseNet) add up. On the wider range of both
there is none: codes are copied, which is quicker, too.

A sum of codes is rounded once more. Where both summands and the result have one step, whatever
their zero points, it is exact: a residual stream then takes up the rounding of its branches alone.
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
"""With input and result on grids of width a and b, readers of the input have rounding noise of a^2,
readers of the result of a^2 + b^2. With both on b they have b^2 and b^2: less while b^2 < 2 a^2."""

_UNBOUNDED = (-math.inf, math.inf)


@dataclass
class _SharedRange:
    """Points on one grid. narrowest: the least of the widths that they have alone. limits: how far
    they may reach."""

    names: list[str]
    low: torch.Tensor
    high: torch.Tensor
    narrowest: float
    limits: tuple[float, float]
    width: float


@dataclass
class _EqualScales:
    """Grids of one step, so that so many sums of them are exact."""

    groups: list[_SharedRange]
    width: float
    sums: int = 0

    @property
    def noise(self) -> float:
        """What is rounded there: every tensor but the sums."""
        return (len(self.groups) - self.sums) * self.width**2


def align_ranges(graph: fx.Graph, plan: QuantPlan, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges of observed points, brought together around concats and sums."""
    nodes = {G.name_of(n): n for n in graph.nodes}
    limits = clamp_limits(plan, nodes)
    groups = {
        name: _group(plan, [name], ends, limits.get(name, _UNBOUNDED))
        for name, ends in ranges.items()
    }
    zero = {name for name, ends in ranges.items() if not any(bool(end.any()) for end in ends)}
    for result, *inputs in _aligned_points(plan, nodes, concats=True):
        for name in inputs:
            if zero & {name, result}:  # a zero is one on any grid: its own says nothing
                continue
            both = _merge_groups(plan, groups[name], groups[result])
            if both is not None:
                groups |= dict.fromkeys(both.names, both)
    streams = {id(g): _EqualScales([g], g.width) for g in groups.values()}
    for names in _aligned_points(plan, nodes, concats=False):
        if zero & {*names}:
            continue
        met = {id(streams[id(groups[n])]): streams[id(groups[n])] for n in names}
        one = _merge_streams(list(met.values()))
        if one is not None:
            streams |= {id(g): one for g in one.groups}
    found = {}
    for name, group in groups.items():
        wider = streams[id(group)].width / group.width
        found[name] = (group.low * wider, group.high * wider)
    return found


def clamp_limits(plan: QuantPlan, nodes: Mapping[str, fx.Node]) -> dict[str, tuple[float, float]]:
    """Of points whose ends stand for a clamp: how far they may reach for that."""
    found: dict[str, tuple[float, float]] = {}
    for decision in plan.nodes:
        node = nodes.get(decision.node)
        if node is None or decision.execution is not Execution.FUSED or decision.output is None:
            continue
        row = row_of(node)
        low, high = row.bounds(node) if row is not None else (None, None)
        root = plan.root(decision.output)
        was = found.get(root, _UNBOUNDED)
        found[root] = (
            was[0] if low is None else max(was[0], low),
            was[1] if high is None else min(was[1], high),
        )
    return found


def _aligned_points(
    plan: QuantPlan, nodes: Mapping[str, fx.Node], concats: bool
) -> Iterator[tuple[str, ...]]:
    """Of every concat, or of every sum of two, on codes: the observed points whose parameters the
    result and inputs of its kind have."""
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
        alike = [
            n for n, f in origins if spec is not None and (observed.get(n), f) == (spec, factor)
        ]
        if alike and (concats or len(alike) == len(origins) == 2):
            yield result, *alike


def output_point(plan: QuantPlan, nodes: Mapping[str, fx.Node], decision: Decision) -> str | None:
    """The point behind a node, or behind the clamp that is fused into it."""
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
    """Both on the range of both, if that is not much wider than the narrowest of them."""
    if one is other:
        return None
    ends = torch.minimum(one.low, other.low), torch.maximum(one.high, other.high)
    limits = max(one.limits[0], other.limits[0]), min(one.limits[1], other.limits[1])
    both = _group(plan, [*one.names, *other.names], ends, limits)
    both.narrowest = min(one.narrowest, other.narrowest)
    fits = limits[0] <= float(both.low) and float(both.high) <= limits[1]
    return both if fits and both.width <= MAX_WIDENING * both.narrowest else None


def _merge_streams(met: list[_EqualScales]) -> _EqualScales | None:
    """With one step more sums are exact and grids wider: if that is less noise in all."""
    both = _EqualScales(
        [g for stream in met for g in stream.groups],
        max(stream.width for stream in met),
        sum(stream.sums for stream in met) + 1,
    )
    fits = all(float(g.high) * both.width / g.width <= g.limits[1] for g in both.groups)
    return both if fits and both.noise <= sum(stream.noise for stream in met) else None
