"""Concats, and what they join, on one grid where their ranges are nearly alike.

A concat rescales an input that others read too and that has a range of its own. Onto a range that
is a hundredth wider, most codes keep their number: all values grow by that hundredth, an error that
no averaging takes away, and that chains of concats (DenseNet) add up. On the wider range of both
there is none: codes are copied, which is quicker, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from qtool import graph as G
from qtool import observers
from qtool.ops import Role, row_of
from qtool.plan import Execution, QuantPlan
from qtool.types import Observed

__all__ = ["Range", "aligned"]

Range = tuple[torch.Tensor, torch.Tensor]

WIDER = math.sqrt(2)
"""With input and result on grids of width a and b, readers of the input have rounding noise of a^2,
readers of the result of a^2 + b^2. With both on b they have b^2 and b^2: less while b^2 < 2 a^2."""


@dataclass
class _Group:
    """Points on one grid. narrowest: the least of the widths that they have alone."""

    names: list[str]
    low: torch.Tensor
    high: torch.Tensor
    narrowest: float
    limits: tuple[float, float]


def aligned(graph: fx.Graph, plan: QuantPlan, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges of observed points, those around a concat made one where that costs little."""
    nodes = {G.name_of(n): n for n in graph.nodes}
    limits = _limits(plan, nodes)
    groups = {
        name: _Group([name], *ends, _width(plan, name, *ends), limits.get(name, _NONE))
        for name, ends in ranges.items()
    }
    for one, other in _joined(plan, nodes):
        if one not in groups or other not in groups or groups[one] is groups[other]:
            continue
        if _alike(plan, one, other) and (both := _merged(plan, groups[one], groups[other])):
            groups |= dict.fromkeys(both.names, both)
    return {name: (group.low, group.high) for name, group in groups.items()}


_NONE = (-math.inf, math.inf)


def _limits(plan: QuantPlan, nodes: Mapping[str, fx.Node]) -> dict[str, tuple[float, float]]:
    """Of points whose ends stand for a clamp: how far they may reach for that."""
    found: dict[str, tuple[float, float]] = {}
    for decision in plan.nodes:
        node = nodes.get(decision.node)
        if node is None or decision.execution is not Execution.FUSED or decision.output is None:
            continue
        row = row_of(node)
        low, high = row.bounds(node) if row is not None else (None, None)
        root = plan.root(decision.output)
        was = found.get(root, _NONE)
        found[root] = (
            was[0] if low is None else max(was[0], low),
            was[1] if high is None else min(was[1], high),
        )
    return found


def _joined(plan: QuantPlan, nodes: Mapping[str, fx.Node]) -> Iterator[tuple[str, str]]:
    """(an input, the result) of concats that run on codes: whose parameters they have."""
    for decision in plan.nodes:
        row = row_of(nodes[decision.node]) if decision.node in nodes else None
        if row is None or row.role is not Role.JOIN or decision.output is None:
            continue
        origin, factor = plan.origin(decision.output)
        for name in decision.inputs:
            source, scaled = plan.origin(name)
            if scaled == factor:
                yield source, origin


def _alike(plan: QuantPlan, one: str, other: str) -> bool:
    return plan.point(one).spec == plan.point(other).spec


def _merged(plan: QuantPlan, one: _Group, other: _Group) -> _Group | None:
    low, high = torch.minimum(one.low, other.low), torch.maximum(one.high, other.high)
    narrowest = min(one.narrowest, other.narrowest)
    least, most = (f(a, b) for f, a, b in zip((max, min), one.limits, other.limits, strict=True))
    if _width(plan, one.names[0], low, high) > WIDER * narrowest or low < least or high > most:
        return None
    return _Group([*one.names, *other.names], low, high, narrowest, (least, most))


def _width(plan: QuantPlan, name: str, low: torch.Tensor, high: torch.Tensor) -> float:
    spec = plan.point(name).spec
    assert isinstance(spec, Observed)
    return float(observers.solve(low, high, spec.qtype, spec.symmetric, None).scale)
