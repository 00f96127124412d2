"""Values of the float and of the quantized network as pairs that are compared value by value.

Rows that TopK selects come in an order that the last bit of a score changes: each is compared with
the one that is nearest to it. The first half counts, since the best are first, and among the last
ones near ties decide which are selected at all. The coordinates of a detector's boxes are most of
the signal: its scores are compared besides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qtool.core.output_evidence import BY_VALUES, Evidence
from qtool.core.types import Array
from qtool.metrics.compared_batches import compared_outputs
from qtool.metrics.detections import detections, has_detections

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
