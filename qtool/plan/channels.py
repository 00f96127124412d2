"""Whose channels to watch, so that conversion can smooth them (see qtool/recovery/smoothing.py).

One range for a whole tensor is as wide as its widest channel. Behind a LayerNorm or a GELU a few
channels are often ten times as wide as the others, which then share a tenth of the codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import fx

from qtool import graph as G
from qtool.plan.ops import row_of
from qtool.plan.plan import CHANNELS, Edge, Kind, Point
from qtool.types import Dynamic, Observed, ObserverSpec, QType, SharedWith

__all__ = ["layers_behind", "watch_channels"]

aten = torch.ops.aten
RESHAPES = (aten.reshape.default, aten.flatten.using_ints)


def watch_channels(
    points: Sequence[Point], graph: fx.Graph, native: Collection[fx.Node], qtype: QType
) -> tuple[Point, ...]:
    """A point for every float tensor that is quantized for linear layers alone, each with weights
    of its own. The tensor may be reshaped on the way, as long as its last dimension stays.

    native: nodes whose result comes in codes; there is nothing to multiply before their rounding.
    """
    nodes = {G.name_of(n): n for n in graph.nodes}
    forms = {
        nodes[e.user]: type(p.spec)
        for p in points
        if p.kind is Kind.ACTIVATION
        for e in p.edges
        if e.user in nodes and _is_linear(nodes[e.user])
    }
    weights = Counter(str(n.target) for n in graph.nodes if n.op == "get_attr" for _ in n.users)
    groups: dict[fx.Node, list[list[fx.Node]]] = {}
    for layer in forms:
        path = _path(layer)
        groups.setdefault(path[0], []).append(path[1:])
    spec = Observed(qtype, ObserverSpec("minmax"), axis=-1)
    found = []
    for source, paths in groups.items():
        on_path = {n for path in paths for n in path}
        layers = {path[-1] for path in paths}
        alone = all(weights[str(n.args[1].target)] == 1 for n in layers)  # type: ignore[union-attr]
        inner = all(set(n.users) <= on_path for n in on_path - layers)
        alike = len({forms[n] is Dynamic for n in layers}) == 1
        if source in native or not (alone and inner and alike):
            continue
        if forms[next(iter(layers))] is Dynamic or _only_for(points, source, on_path):
            name = G.name_of(source)
            edges = (Edge(name, G.name_of(n)) for n in source.users if n in on_path)
            found.append(Point(f"{name}.{CHANNELS}", Kind.CHANNELS, spec, tuple(edges)))
    return tuple(found)


def layers_behind(readers: Iterable[fx.Node]) -> list[fx.Node]:
    """The linear layers that read a watched tensor, given the nodes that its point names."""
    found: list[fx.Node] = []
    for node in readers:
        found += [node] if _is_linear(node) else layers_behind(node.users)
    return found


def _path(layer: fx.Node) -> list[fx.Node]:
    """From the tensor that a layer reads, before any reshape, to the layer."""
    path, node = [layer], layer.args[0]
    assert isinstance(node, fx.Node)
    while node.target in RESHAPES:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if not G.same_sizes(G.shape(source)[-1:], G.shape(node)[-1:]):
            break
        path, node = [node, *path], source
    return [node, *path]


def _is_linear(node: fx.Node) -> bool:
    row = row_of(node) if node.op == "call_function" else None
    if row is None or row.key != "linear":
        return False
    weight = node.args[1]
    return isinstance(weight, fx.Node) and weight.op == "get_attr"


def _only_for(points: Sequence[Point], source: fx.Node, readers: set[fx.Node]) -> bool:
    """Whether the tensor has a range of its own, and nobody else reads its codes or shares it."""
    name, allowed = G.name_of(source), {G.name_of(n) for n in readers}
    own = next((p for p in points if p.name == name and p.kind is Kind.ACTIVATION), None)
    if own is None or not isinstance(own.spec, Observed):
        return False
    sharing = {p.name for p in points if isinstance(p.spec, SharedWith) and p.spec.point == name}
    return sharing <= allowed and {e.user for e in own.edges} <= allowed
