"""Targets of SmoothQuant: float tensors that are quantized for linear layers only, and those that
recurrent layers read.

One range for a whole tensor is as wide as its widest channel. Behind a LayerNorm or a GELU a few
channels are often ten times as wide as the others, which then share a tenth of the codes. Of a
recurrent layer with a float input the weights gain: one scale for a row is as wide as the weights
of channels that are nearly zero, and the others share what is left of the codes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops import row_of
from qtool.core.types import Dynamic, Observed, SharedWith
from qtool.planning.plan import Kind, QuantPlan
from qtool.planning.targets.rules import RECURRENT

aten = torch.ops.aten
RESHAPES = (aten.reshape.default, aten.flatten.using_ints)


@dataclass(frozen=True)
class SmoothingTarget:
    """A tensor to smooth, by the names of nodes.

    Attributes:
        source: computes the tensor.
        readers: read it, and lead to the layers.
        layers: linear or recurrent layers that read it, directly or reshaped.
    """

    source: str
    readers: tuple[str, ...]
    layers: tuple[str, ...]


def smoothing_targets(graph: fx.Graph, plan: QuantPlan) -> list[SmoothingTarget]:
    """Return the float tensors that are quantized only for linear layers with their own weights, or
    read by recurrent ones.

    The tensor may be reshaped on the way if its last dimension stays. Tensors that exist only as
    codes are excluded: there is no float value to multiply.
    """
    nodes = {G.name_of(n): n for n in graph.nodes}
    edges = [(p, nodes[e.user]) for p in plan for e in p.edges if e.user in nodes]
    # the input of a recurrent layer is float, or rounded in the range of a batch
    schemes = {n: Dynamic for p, n in edges if p.kind is Kind.WEIGHT and _is_layer(n, RECURRENT)}
    schemes |= {
        n: type(p.spec)
        for p, n in edges
        if p.kind is Kind.ACTIVATION and _is_layer(n, ("linear", *RECURRENT))
    }
    reads = G.attribute_reads(graph)
    groups: dict[fx.Node, list[list[fx.Node]]] = {}
    for layer in schemes:
        path = _path(layer)
        groups.setdefault(path[0], []).append(path[1:])
    targets = []
    for source, paths in groups.items():
        on_path = {n for path in paths for n in path}
        layers = {path[-1] for path in paths}
        exclusive = all(reads[str(n.args[1].target)] == 1 for n in layers)  # type: ignore[union-attr]  # a node
        inner = all(set(n.users) <= on_path for n in on_path - layers)
        dynamic = {schemes[n] is Dynamic for n in layers}
        if not (exclusive and inner and len(dynamic) == 1) or _codes_only(plan, source):
            continue
        if dynamic == {True} or _only_for(plan, source, on_path):
            readers = tuple(G.name_of(n) for n in source.users if n in on_path)
            ends = tuple(G.name_of(path[-1]) for path in paths)
            targets.append(SmoothingTarget(G.name_of(source), readers, ends))
    return targets


def _codes_only(plan: QuantPlan, node: fx.Node) -> bool:
    decision = plan.decision(G.name_of(node))
    return decision is not None and decision.codes_only


def _path(layer: fx.Node) -> list[fx.Node]:
    """Return the nodes from the input of a layer, before any reshape, to the layer."""
    path, node = [layer], layer.args[0]
    assert isinstance(node, fx.Node)
    while node.target in RESHAPES:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if not G.same_sizes(G.shape(source)[-1:], G.shape(node)[-1:]):
            break
        path, node = [node, *path], source
    return [node, *path]


def _is_layer(node: fx.Node, keys: Collection[str]) -> bool:
    row = row_of(node) if node.op == "call_function" else None
    if row is None or row.key not in keys:
        return False
    weight = node.args[1]
    return isinstance(weight, fx.Node) and weight.op == "get_attr"


def _only_for(plan: QuantPlan, source: fx.Node, readers: set[fx.Node]) -> bool:
    """Return whether the tensor has its own range, and its codes have no other readers."""
    name, allowed = G.name_of(source), {G.name_of(n) for n in readers}
    if name not in plan or not isinstance(plan.point(name).spec, Observed):
        return False
    sharing = {p.name for p in plan if isinstance(p.spec, SharedWith) and p.spec.point == name}
    return sharing <= allowed and {e.user for e in plan.point(name).edges} <= allowed
