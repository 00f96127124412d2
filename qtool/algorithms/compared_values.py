"""The values that a quantized network is compared by: its outputs, or the scores that the best
classes come from where a network gives these alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qtool.algorithms.acceptance import MIN_POWER
from qtool.algorithms.comparable_pairs import Pair, comparable_pairs
from qtool.core import graph as G
from qtool.core.graph import FloatGraph
from qtool.core.output_evidence import BY_VALUES, Evidence
from qtool.simulation.output_evidence import evidence_of_graph

Values = Sequence[torch.Tensor]


def compared_nodes(graph: FloatGraph) -> dict[str, Evidence]:
    """Return node -> what is known of it: float outputs, and what the other outputs are made of;
    without outputs whose number of rows depends on values."""
    names: dict[str, Evidence] = {}
    evidence = evidence_of_graph(graph, {})
    pairs = zip(G.output_nodes(graph.graph), graph.outputs, strict=True)
    known = {node: evidence[name] for node, name in pairs if evidence[name].rows != BY_VALUES}
    waiting, seen = list(known)[::-1], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if G.is_float(node):
            names[G.name_of(node)] = known.get(node, Evidence())
        elif node.op.startswith("call"):
            waiting += reversed(node.all_input_nodes)
    return names


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
