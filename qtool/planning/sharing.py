"""Points that share their parameters.

A pass-through node moves codes, so its output has the parameters of its input. A concat copies the
inputs that have its output's parameters and rescales the others. An input that only the concat
reads takes the output's parameters: that costs nothing, since its codes would be rescaled anyway.
An input with other readers keeps its own, finer parameters.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import fx

from qtool.core import graph as G
from qtool.core.ops import Role, data_inputs, row_of
from qtool.core.types import Bounds, Observed, SharedWith
from qtool.planning.plan import Kind, Point


def share_parameters(
    points: list[Point], graph: fx.Graph, passthrough: Collection[str]
) -> tuple[Point, ...]:
    """Return the points with `SharedWith` where parameters must or may agree.

    Args:
        points: the points of a plan.
        graph: the graph of the plan.
        passthrough: names of the nodes that pass codes through.
    """
    nodes = {G.name_of(n): n for n in graph.nodes}
    reads = {(e.source, e.user): p.name for p in points for e in p.edges}
    free = {p.name for p in points if p.kind is Kind.ACTIVATION and isinstance(p.spec, Observed)}
    parent: dict[str, tuple[str, float]] = {}  # point -> (point with the same codes, factor)

    def root(name: str) -> tuple[str, float]:
        factor = 1.0
        while name in parent:
            name, f = parent[name]
            factor *= f
        return name, factor

    for point in points:
        node = nodes.get(point.name)
        if node is not None and point.name in passthrough:
            source = reads.get((G.name_of(node.args[0]), point.name))  # of a pass-through
            if source is not None:
                parent[point.name] = (source, _factor(node))
    for point in points:
        node = nodes.get(point.name)
        concat = _as_concat(node) if node is not None else None
        if concat is None:
            continue
        inputs = data_inputs(concat)
        for source in inputs:
            if not isinstance(source, fx.Node):
                continue
            directly = reads.get((G.name_of(source), point.name)) == G.name_of(source)
            owner, _ = root(G.name_of(source))
            if owner == root(point.name)[0] or owner not in free:
                continue
            if directly and _only_feeds(source, parent) and _keeps_clamp(source, inputs):
                parent[owner] = (point.name, 1.0)
    return tuple(
        replace(p, spec=SharedWith(*root(p.name))) if p.name in parent and p.name in free else p
        for p in points
    )


def _keeps_clamp(source: fx.Node, inputs: list[object]) -> bool:
    """Return whether a clamp fused into `source` still saturates with the concat's parameters.

    It does only if every other input is bounded as tightly. (Next to an input with negative values,
    a fused relu would not clamp any more, and its layer would fall back to float.)
    """
    low, high = clamp_bounds(source)
    others = [clamp_bounds(other) for other in inputs if other is not source]
    below = low is None or all(o[0] is not None and o[0] >= low for o in others)
    above = high is None or all(o[1] is not None and o[1] <= high for o in others)
    return below and above


def clamp_bounds(value: object) -> Bounds:
    """Return the bounds of the clamp that computes a value, perhaps moved afterwards."""
    while isinstance(value, fx.Node) and (row := row_of(value)) is not None:
        if row.role is Role.CLIP:
            return row.bounds(value)
        if row.role is not Role.PASS or row.scale_factor is not None:
            break
        value = value.args[0]
    return None, None


def _factor(node: fx.Node) -> float:
    row = row_of(node)
    factor = 1.0 if row is None or row.scale_factor is None else node.args[row.scale_factor]
    assert isinstance(factor, float)
    return factor


def _as_concat(node: fx.Node) -> fx.Node | None:
    """Return the node if it is a concat, otherwise None."""
    row = row_of(node)
    if row is not None and row.role is Role.CLIP and isinstance(node.args[0], fx.Node):
        # a clamp changes the range: inputs with negative values must keep their own parameters
        return None
    return node if row is not None and row.role is Role.JOIN else None


def _only_feeds(node: fx.Node, parent: dict[str, tuple[str, float]]) -> bool:
    """Return whether `node` and every value it shares codes with is computed, and read once."""
    while True:
        if len(node.users) != 1 or node.op != "call_function" or _factor(node) != 1.0:
            return False
        if G.name_of(node) not in parent:
            return True
        if not isinstance(node.args[0], fx.Node):  # a concat that has a concat's codes
            return False
        node = node.args[0]
