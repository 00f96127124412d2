"""The graphs inside If, Loop and Scan nodes of ONNX messages, and what they read from outside."""

from __future__ import annotations

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
