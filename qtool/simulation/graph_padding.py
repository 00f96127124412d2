"""The token axes of a graph, whose padded positions count in no comparison."""

from __future__ import annotations

from qtool.core import graph as G
from qtool.core.graph import FloatGraph
from qtool.verification.strip_padding import Padding


def padding_of(graph: FloatGraph) -> Padding:
    """Return the token axes of a graph."""
    nodes = G.output_nodes(graph.graph)
    sizes = [[s if isinstance(s, int) else str(s) for s in G.shape(n)] for n in nodes]
    shapes = [[graph.dims.get(str(s), s) for s in each] for each in sizes]
    return Padding.of({i.name: i.shape for i in graph.inputs}, shapes)
