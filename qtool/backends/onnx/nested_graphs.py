"""The graphs inside If, Loop and Scan nodes of ONNX messages, and what they read from outside."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import onnx


def _free_names(graph: onnx.GraphProto) -> list[str]:
    """Return the names that a subgraph reads from outside, in order."""
    own = {i.name for i in (*graph.input, *graph.initializer)}
    own |= {i.values.name for i in graph.sparse_initializer}
    read: dict[str, None] = {}
    for node in graph.node:
        read |= dict.fromkeys(n for n in read_names(node) if n not in own)
        own |= set(node.output)
    read |= dict.fromkeys(o.name for o in graph.output if o.name not in own)
    return list(read)


def nested_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for graph in inner_graphs(node):
            yield from nested_nodes(graph.node)


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the subgraphs of a node itself."""
    for attribute in node.attribute:
        yield from (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those inside its nodes, at any depth."""
    yield graph
    for node in graph.node:
        for inner in inner_graphs(node):
            yield from all_graphs(inner)


def read_names(node: onnx.NodeProto) -> list[str]:
    """Return all names that a node reads: its inputs and the free names of its subgraphs."""
    names = [n for n in node.input if n]
    for graph in inner_graphs(node):
        names += _free_names(graph)
    return list(dict.fromkeys(names))


def with_names(graph: onnx.GraphProto, names: Mapping[str, str]) -> onnx.GraphProto:
    """Return a subgraph in which values have other names, inner graphs included.

    Args:
        graph: the subgraph.
        names: name -> new name.
    """
    if not names:
        return graph
    renamed = onnx.GraphProto()
    renamed.CopyFrom(graph)
    for each in (*renamed.initializer, *renamed.output, *renamed.value_info):
        each.name = names.get(each.name, each.name)
    for node in nested_nodes(renamed.node):
        for values in (node.input, node.output):
            values[:] = [names.get(value, value) for value in values]
        for inner in inner_graphs(node):
            for output in inner.output:
                output.name = names.get(output.name, output.name)
    return renamed


# Topological order of the nodes of an ONNX graph.
#
# ONNX demands the order; ONNX Runtime runs files without it, so that such files exist.


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
