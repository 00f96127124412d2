"""Splits layers with large weights into several parallel layers and a concatenation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from qtool.core.graph.arguments import argument
from qtool.core.graph.deferred import part_of
from qtool.core.graph.edit import add_call, add_tensor, finish, replace
from qtool.core.graph.float_graph import FloatGraph
from qtool.core.graph.nodes import calls, name_of, tensor

aten = torch.ops.aten
_MULTIPLE = 32  # of rows and columns in a shard: whole vectors of the kernels


def split(graph: FloatGraph, max_bytes: int) -> tuple[dict[str, str], set[fx.Node]]:
    """Split in place: linear layers by outputs, embedding tables by columns.

    Args:
        graph: edited in place.
        max_bytes: size of a weight in float32 that is not split.

    Returns:
        (name of a new node -> name of its layer, nodes that concatenate results).
    """
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
        bounds = list(_bounds(stored.shape[axis], 4 * stored.numel(), max_bytes))
        if len(bounds) > 1:
            nodes = [_add_shard(graph, node, axis, span, i) for i, span in enumerate(bounds)]
            layers |= {name_of(each): name_of(node) for each in nodes}
            joint = add_call(node, aten.cat.default, (nodes, -1), name_of(node), node, node)
            replace(node, joint)
            joints.add(joint)
    if joints:
        finish(graph.module)
    return layers, joints


_PLACES: dict[Any, tuple[int, int]] = {  # position of the weight; its axis to split
    aten.linear.default: (1, 0),
    aten.embedding.default: (0, 1),
}


def _bounds(size: int, total_bytes: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each shard."""
    count = -(-total_bytes // max_bytes)
    each = -(-size // (count * _MULTIPLE)) * _MULTIPLE
    return ((start, min(start + each, size)) for start in range(0, size, each))


def _add_shard(
    graph: FloatGraph,
    node: fx.Node,
    axis: int,
    span: tuple[int, int],
    index: int,
) -> fx.Node:
    def cut(stored: fx.Node, along: int) -> fx.Node:
        part = *[slice(None)] * along, slice(*span)
        data = part_of(tensor(graph.module, stored), part)
        return add_tensor(graph.module, node, data, f"{name_of(stored)}.{index}")

    name = f"{name_of(node)}.{index}"
    if node.target is aten.embedding.default:
        table: Any = node.args[0]
        return add_call(node, node.target, (cut(table, axis), *node.args[1:]), name, node)
    weight: Any = node.args[1]
    bias = argument(node, 2, "bias")
    bias_shard = () if bias is None else (cut(bias, 0),)
    return add_call(node, node.target, (node.args[0], cut(weight, axis), *bias_shard), name, node)
