"""The values that a quantized network is compared by, where its SQNR hides what it is used for.

A network may give the best classes alone: then the scores that they come from are compared. The
coordinates of a detector's boxes are most of the signal: its scores are compared besides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qtool.algorithms.acceptance import MIN_POWER
from qtool.core import graph as G
from qtool.core.graph import FloatGraph
from qtool.core.output_evidence import BY_VALUES
from qtool.metrics.detections import detections, has_detections
from qtool.simulation.output_evidence import evidence_of_graph

Values = Sequence[torch.Tensor]


def compared_nodes(graph: FloatGraph) -> tuple[str, ...]:
    """Return the names of the float outputs of a graph, and of what others are made of; without
    outputs whose number of rows depends on values."""
    names: dict[str, None] = {}
    evidence = evidence_of_graph(graph, {})
    pairs = zip(G.output_nodes(graph.graph), graph.outputs, strict=True)
    waiting = [node for node, name in pairs if evidence[name].rows != BY_VALUES][::-1]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if G.is_float(node):
            names[G.name_of(node)] = None
        elif node.op.startswith("call"):
            waiting += reversed(node.all_input_nodes)
    return tuple(names)


def worst_error(pairs: Sequence[tuple[Values, Values]]) -> float:
    """Return the largest relative squared error of a compared value over all batches.

    Args:
        pairs: float and quantized values of each batch.
    """
    columns = list(zip(*(zip(real, coded, strict=True) for real, coded in pairs), strict=True))
    scores = (_scores(column) for column in columns)
    return max((_error(column) for column in (*columns, *filter(None, scores))), default=0.0)


def _error(column: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    signal = noise = 0.0
    for real, coded in column:
        finite, exact = real.isfinite(), real.double()
        signal += float(exact.square().masked_fill(~finite, 0).sum())
        noise += float((exact - coded).square().masked_fill(~finite, 0).sum())
    return noise / max(signal, MIN_POWER)


def _scores(
    column: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Return the scores of a detector's positions; None of other outputs."""
    first = column[0][0]
    if first.dim() != 3 or any(real.shape[1:] != first.shape[1:] for real, _ in column):
        return None  # texts of other lengths
    if not has_detections(torch.cat([real for real, _ in column]).numpy()):
        return None
    exact = [real.numpy() for real, _ in column]
    coded = [other.nan_to_num().numpy() for _, other in column]
    best = zip(
        (detections(real, real).best for real in exact),
        (detections(other, real).best for other, real in zip(coded, exact, strict=True)),
        strict=True,
    )
    return [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in best]
