"""Values of the float and of the quantized network as pairs that are compared value by value.

Rows that TopK selects come in an order that the last bit of a score changes: each is compared with
the one that is nearest to it. The first half counts, since the best are first, and among the last
ones near ties decide which are selected at all. The coordinates of a detector's boxes are most of
the signal: its scores are compared besides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qtool.core import graph as G
from qtool.core.graph import FloatGraph
from qtool.core.output_evidence import BY_VALUES, Evidence
from qtool.core.types import Array
from qtool.metrics.compared_batches import compared_outputs
from qtool.metrics.output_kind import detections, has_detections
from qtool.simulation.output_evidence import evidence_of_graph

MIN_POWER = 1e-30  # of an output that is zero everywhere
LEAST_SPREAD = 1e-10  # of the power: below, samples are equal but for rounding

Pair = tuple[torch.Tensor, torch.Tensor]


def comparable_pairs(
    real: Sequence[torch.Tensor], coded: Sequence[torch.Tensor], evidence: Sequence[Evidence]
) -> list[Pair]:
    """Return the pairs of a batch, as many for each batch of a network.

    Args:
        real: values of the float network.
        coded: those of the quantized network.
        evidence: what is known of each; without those whose number of rows depends on values.
    """
    known = [each for each in evidence if each.rows != BY_VALUES]
    values = zip(real, coded, evidence, strict=True)
    pairs = [(a, b) for a, b, each in values if each.rows != BY_VALUES]
    if any(each.rows for each in known):
        pairs = _matched(pairs, known)
    return pairs + [_scores(*pair) for pair in pairs if pair[0].dim() == 3]


def _matched(pairs: Sequence[Pair], evidence: Sequence[Evidence]) -> list[Pair]:
    """Return pairs with the rows that TopK selects in the order of the float network."""
    names = [str(i) for i in range(len(pairs))]
    real, coded = ([_array(pair[side]) for pair in pairs] for side in (0, 1))
    _, *ordered = compared_outputs(names, real, coded, dict(zip(names, evidence, strict=True)))
    values = zip(*ordered, (each.rows for each in evidence), strict=True)
    return [(_better_half(a, rows), _better_half(b, rows)) for a, b, rows in values]


def _better_half(values: Array, rows: int) -> torch.Tensor:
    """Return the first half of selected rows, [samples, rows, ...]; of other values all."""
    return torch.from_numpy(values[:, : (rows + 1) // 2] if rows in values.shape[1:2] else values)


def _scores(real: torch.Tensor, coded: torch.Tensor) -> Pair:
    """Return the scores of a detector's positions; zeros of other values, and without objects."""
    a = _array(real)
    if real.shape != coded.shape or not has_detections(a):
        return torch.zeros(len(a), 1), torch.zeros(len(a), 1)
    b = detections(_array(coded.nan_to_num()), a).best
    return torch.from_numpy(detections(a, a).best), torch.from_numpy(b)


def _array(values: torch.Tensor) -> Array:
    return values.detach().float().cpu().numpy()


Values = Sequence[torch.Tensor]


# The values that a quantized network is compared by: its outputs, or the scores that the best
# classes come from where a network gives these alone.


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
    pairs = [(a.isfinite(), a.double(), b) for a, b in column]
    noise = sum(float((a - b).square().masked_fill(~known, 0).sum()) for known, a, b in pairs)
    return noise / signal([a for a, _ in column])


def signal(batches: Sequence[torch.Tensor]) -> float:
    """Return what varies over samples in a float value, as R2 counts it, to which errors are
    relative; the power where that is not known: of one sample, of several sizes, of equal
    values."""
    real = [torch.atleast_1d(a.double().masked_fill(~a.isfinite(), 0)) for a in batches]
    power = sum(float(a.square().sum()) for a in real)
    if len({a.shape[1:] for a in real}) == 1 and (samples := sum(map(len, real))) > 1:
        spread = float(torch.cat(real).var(0).sum()) * samples
        power = spread if spread > LEAST_SPREAD * power else power
    return max(power, MIN_POWER)
