"""What a graph says of its outputs."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import FloatGraph
from qtool.core.graph.file_parts import part_kind
from qtool.core.output_evidence import (
    BY_VALUES,
    Evidence,
    Operator,
    kind_name,
    output_evidence,
    reads_images,
    row_selections,
)
from qtool.verification.strip_padding import Padding


def evidence_of_graph(graph: FloatGraph, kinds: Mapping[str, str]) -> dict[str, Evidence]:
    """Return what is known of each output of a float graph.

    Args:
        graph: the graph.
        kinds: output -> what the user calls it, as its recipe has it.
    """
    ends = list(zip(G.output_nodes(graph.graph), graph.outputs, strict=True))
    known = output_evidence(
        _operators(graph.graph),
        [node.name for node in G.placeholders(graph.graph)],
        [node.name for node, _ in ends],
        Evidence(
            classes=graph.metadata.classes,
            labels=graph.labels,
            reads_images=reads_images(i.shape for i in graph.inputs),
        ),
    )
    return {name: known[node.name]._replace(kind=kinds.get(name, "")) for node, name in ends}


def evidence_of_float_outputs(graph: FloatGraph) -> list[Evidence]:
    """Return what is known of each float output of a graph."""
    evidence = evidence_of_graph(graph, {})
    pairs = zip(G.output_nodes(graph.graph), graph.outputs, strict=True)
    return [evidence[name] for node, name in pairs if G.is_float(node)]


def rows_of_nodes(graph: FloatGraph) -> dict[str, int]:
    """Return the nodes that compute rows which values decide, by name: their `Evidence.rows`."""
    operators = [each._replace(kind=kind_name(each.kind)) for each in _operators(graph.graph)]
    rows = row_selections(operators, [node.name for node in G.placeholders(graph.graph)])
    known = ((n, rows[n.name]) for n in graph.graph.nodes if n.name in rows)
    return {G.name_of(n): c for n, c in known if c == BY_VALUES or c in G.shape(n)[1:2]}


def _operators(graph: fx.Graph) -> Iterator[Operator]:
    """Yield each call; that of several results has those that are used as its outputs."""
    for node in graph.nodes:
        if not node.op.startswith("call") or _is_part(node):
            continue
        parts: dict[Any, str] = {u.args[1]: u.name for u in node.users if _is_part(u)}
        outputs = [parts.get(i, "") for i in range(1 + max(parts))] if parts else [node.name]
        inputs = [each.name for each in node.all_input_nodes]
        stored = [str(n.target) for n in node.all_input_nodes if n.op == "get_attr"]
        kind = "nonzero" if _selects(node) else part_kind(node) or _name(node.target)
        yield Operator(
            kind, " ".join((G.name_of(node), *stored)), inputs, outputs, _count(node, kind)
        )


def _selects(node: fx.Node) -> bool:
    """Return whether a node takes the rows for which a mask is true."""
    types = (G.value(n).dtype for n in node.all_input_nodes[1:] if G.is_tensor(n))
    return _name(node.target) == "aten::index" and torch.bool in types


def _is_part(node: fx.Node) -> bool:
    return node.target is operator.getitem


def _name(target: Any) -> str:
    """Return the type of an operator; of a call of a module, a quantization point, its name."""
    return str(target._schema.name) if hasattr(target, "_schema") else str(target)


def _count(node: fx.Node, kind: str) -> int:
    """Return how many values TopK selects; 0 of other operators, and where a size is open."""
    if "topk" not in kind.lower():
        return 0
    before, after = G.shape(node.all_input_nodes[0]), G.value(node)[0].shape
    sizes = zip(before, after, strict=False)
    known = ((b if isinstance(b, int) else -1, a) for b, a in sizes if isinstance(a, int))
    return next((a for b, a in known if a != b), 0)


def padding_of(graph: FloatGraph) -> Padding:
    """Return the token axes of a graph."""
    nodes = G.output_nodes(graph.graph)
    sizes = [[s if isinstance(s, int) else str(s) for s in G.shape(n)] for n in nodes]
    shapes = [[graph.dims.get(str(s), s) for s in each] for each in sizes]
    return Padding.of({i.name: i.shape for i in graph.inputs}, shapes)
