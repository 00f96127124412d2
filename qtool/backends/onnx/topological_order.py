"""Topological order of the nodes of an ONNX graph.

ONNX demands the order; ONNX Runtime runs files without it, so that such files exist.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

import onnx

from qtool.backends.onnx.nested_graphs import inner_graphs, read_names


def in_order(graph: onnx.GraphProto) -> bool:
    """Whether every node comes after the nodes that make its inputs."""
    waiting = {name for node in graph.node for name in node.output if name}
    for node in graph.node:
        if waiting.intersection(read_names(node)):
            return False
        waiting.difference_update(node.output)
    return True


def sort_graphs(graph: onnx.GraphProto) -> None:
    """Sort the nodes of a graph and of those inside its nodes, as `sort_nodes` does."""
    for node in graph.node:
        for inner in inner_graphs(node):
            sort_graphs(inner)
    sort_nodes(graph)


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Sort the nodes in place (Kahn 1962); a node moves only as far as it has to.

    Raises:
        ValueError: nodes form a cycle, which no order has.
    """
    if in_order(graph):
        return
    nodes = list(graph.node)
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    sources = [{maker[name] for name in read_names(node) if name in maker} for node in nodes]
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for i, needed in enumerate(sources):
        for source in needed:
            readers[source].append(i)
    ready = [i for i, needed in enumerate(sources) if not needed]
    order: list[int] = []
    while ready:
        order.append(i := heapq.heappop(ready))
        for reader in readers[i]:
            sources[reader].discard(i)
            if not sources[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        waiting = next(node for node, needed in zip(nodes, sources, strict=True) if needed)
        raise ValueError(
            f"some of its nodes form a cycle: '{waiting.name}' ({waiting.op_type}) reads from it"
        )
    copies = [onnx.NodeProto.FromString(nodes[i].SerializeToString()) for i in order]
    del graph.node[:]
    graph.node.extend(copies)
