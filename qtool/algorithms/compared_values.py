"""The values that a quantized network is compared by: its outputs, or what they are made of.

Of the best classes alone these are their scores. Of rows that TopK selects it is what it selects
from, since among near ties other rows are as good; behind layers that read such rows, the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import fx

from qtool.algorithms.acceptance import MIN_POWER
from qtool.algorithms.comparable_pairs import Pair, comparable_pairs
from qtool.core import graph as G
from qtool.core.graph import FloatGraph
from qtool.core.ops import row_of
from qtool.core.output_evidence import BY_VALUES, Evidence
from qtool.simulation.output_evidence import evidence_of_graph, rows_of_nodes

Values = Sequence[torch.Tensor]


def compared_nodes(graph: FloatGraph) -> dict[str, Evidence]:
    """Return node -> what is known of it: float outputs, and what the other outputs are made of;
    without outputs whose number of rows depends on values."""
    names: dict[str, Evidence] = {}
    evidence, rows = evidence_of_graph(graph, {}), rows_of_nodes(graph)
    pairs = zip(G.output_nodes(graph.graph), graph.outputs, strict=True)
    known = {node: evidence[name] for node, name in pairs if evidence[name].rows != BY_VALUES}
    waiting, seen = list(known)[::-1], set()
    while waiting:
        node = waiting.pop()
        if node in seen or node.op == "get_attr":
            continue
        seen.add(node)
        name = G.name_of(node)
        if G.is_float(node) and (name not in rows or _reads_rows(node, rows)):
            names[name] = known.get(node, Evidence(rows=rows.get(name, 0)))
        elif node.op.startswith("call"):
            waiting += reversed(node.all_input_nodes)
    return names


def _reads_rows(node: fx.Node, rows: Collection[str]) -> bool:
    """Return whether a layer with weights reads selected rows, on the way to a node.

    Args:
        node: one with such rows.
        rows: names of the nodes that have them.
    """
    waiting, seen = [node], {node}
    while waiting:
        each = waiting.pop()
        row = row_of(each)
        sources = [n for n in each.all_input_nodes if G.name_of(n) in rows and n not in seen]
        if row is not None and row.weight is not None and sources:
            return True
        seen.update(sources)
        waiting += sources
    return False


def worst_error(values: Sequence[tuple[Values, Values]], evidence: Sequence[Evidence]) -> float:
    """Return the largest relative squared error of a compared value over all batches.

    Args:
        values: float and quantized values of each batch.
        evidence: what is known of each value.
    """
    batches = (comparable_pairs(real, coded, evidence) for real, coded in values)
    return max(map(_error, zip(*batches, strict=True)), default=0.0)


def _error(column: Sequence[Pair]) -> float:
    signal = noise = 0.0
    for real, coded in column:
        finite, exact = real.isfinite(), real.double()
        signal += float(exact.square().masked_fill(~finite, 0).sum())
        noise += float((exact - coded).square().masked_fill(~finite, 0).sum())
    return noise / max(signal, MIN_POWER)
