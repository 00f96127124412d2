"""Layers whose weights are larger than a limit become several beside each other, and are joined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from qtool.core.graph.edit import add_call, add_tensor, finish, replace
from qtool.core.graph.float_graph import FloatGraph
from qtool.core.graph.nodes import argument, calls, name_of, tensor

aten = torch.ops.aten
_MULTIPLE = 32  # of rows and columns in a part: whole vectors of the kernels


@dataclass(frozen=True)
class LayerShard:
    """Where a stored tensor is taken from: another one, along an axis."""

    source: str
    axis: int
    start: int
    end: int

    @property
    def slices(self) -> tuple[slice, ...]:
        return (*[slice(None)] * self.axis, slice(self.start, self.end))


def split(
    graph: FloatGraph, most: int
) -> tuple[dict[str, LayerShard], dict[str, str], set[fx.Node]]:
    """Splits in place: linear layers by their outputs, tables of embeddings by their columns.

    Args:
        most: bytes that a weight may have in float32; it is split where it has more.

    Returns the new attributes, the new nodes' names with those of their layers, and the nodes that
    join results.
    """
    parts: dict[str, LayerShard] = {}
    layers: dict[str, str] = {}
    joints = set()
    for node in calls(graph.graph):
        places = _PLACES.get(node.target)
        if places is None:
            continue
        at, axis = places
        weight = node.args[at]
        if not isinstance(weight, fx.Node) or weight.op != "get_attr":
            continue
        stored = tensor(graph.module, weight)
        bounds = list(_bounds(stored.shape[axis], 4 * stored.numel(), most))
        if len(bounds) > 1:
            made = [_part(graph, node, axis, span, i, parts) for i, span in enumerate(bounds)]
            layers |= {name_of(each): name_of(node) for each in made}
            joint = add_call(node, aten.cat.default, (made, -1), name_of(node), node, node)
            replace(node, joint)
            joints.add(joint)
    if joints:
        finish(graph.module)
    return parts, layers, joints


_PLACES: dict[Any, tuple[int, int]] = {  # where the weight stands; the axis of what comes last
    aten.linear.default: (1, 0),
    aten.embedding.default: (0, 1),
}


def _bounds(size: int, held: int, most: int) -> Iterator[tuple[int, int]]:
    """From where to where the parts go."""
    count = -(-held // most)
    each = -(-size // (count * _MULTIPLE)) * _MULTIPLE
    return ((start, min(start + each, size)) for start in range(0, size, each))


def _part(
    graph: FloatGraph,
    node: fx.Node,
    axis: int,
    span: tuple[int, int],
    index: int,
    parts: dict[str, LayerShard],
) -> fx.Node:
    def cut(stored: fx.Node, along: int) -> fx.Node:
        part = LayerShard(str(stored.target), along, *span)
        data = tensor(graph.module, stored).detach()[part.slices]
        found = add_tensor(graph.module, node, data, f"{name_of(stored)}.{index}")
        parts[str(found.target)] = part
        return found

    name = f"{name_of(node)}.{index}"
    if node.target is aten.embedding.default:
        table: Any = node.args[0]
        return add_call(node, node.target, (cut(table, axis), *node.args[1:]), name, node)
    weight: Any = node.args[1]
    bias = argument(node, 2, "bias")
    given = () if bias is None else (cut(bias, 0),)
    return add_call(node, node.target, (node.args[0], cut(weight, axis), *given), name, node)
