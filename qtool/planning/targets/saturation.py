"""Weights whose products cannot saturate when pairs of them are added in 16 bits.

x86 CPUs without VNNI multiply uint8 activations by int8 weights with vpmaddubsw, which adds two
neighbouring products with signed 16-bit saturation; vpmaddwd then widens the sums. Which weights
are neighbours follows from how a runtime packs them (pairs.py). An activation is 0 or more, hence
the extremes are both weights of one sign at the highest code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from qtool.core.types import QType, QuantParams
from qtool.core.weight_pairs import saturating_pairs

_INT16_MAX = 2**15 - 1
_UP = 1 + 2.0**-20


def saturation_limit(activation: QType) -> int:
    """The largest |w0 + w1| with |a0 * w0 + a1 * w1| within 16 bits for all activation codes."""
    return _INT16_MAX // activation.qmax


def pair_partners(shape: Sequence[int], groups: int = 1) -> torch.Tensor:
    """For each weight of an output channel the weights that it can meet in a pair.

    Args:
        shape: of the weight, [out, in / groups, *kernel] or [out, in].

    Returns:
        int64 [weights of a channel, 2], indices into the flattened channel; -1 for none.
    """
    table = torch.full((torch.Size(shape[1:]).numel(), 2), -1)
    for one, other in _pairs(tuple(shape), groups).tolist():
        for a, b in ((one, other), (other, one)):
            table[a, int(table[a, 0] >= 0)] = b
    return table


def largest_pair_sums(codes: torch.Tensor, axis: int | None, groups: int = 1) -> torch.Tensor:
    """The largest sum of two weights of equal sign that can meet, in absolute value.

    Args:
        codes: [out, in / groups, *kernel] with axis 0 (or None: one result for all channels);
            with axis 1 a matrix [in, out], or the weights [directions, out, in] of a recurrent
            layer, whose directions are products of their own.
        axis: of the output channels.

    Returns:
        int64 [channels], or a scalar for `axis` None.
    """
    rows = codes.movedim(axis or 0, 0)
    if axis == 1 and codes.dim() == 3:
        return torch.stack([_largest(rows[:, d], 1) for d in range(rows.shape[1])]).amax(0)
    largest = _largest(rows, groups)
    return largest.amax() if axis is None else largest


def widen_scales(
    weight: torch.Tensor, params: QuantParams, limit: int, groups: int = 1
) -> QuantParams:
    """Parameters under which no pair exceeds `limit` when weights are rounded to nearest.

    The scale of a channel that already keeps to it is untouched; any other grows by as much as its
    largest pair needs, at most to what 7 bits would have.
    """

    def excess() -> torch.Tensor:
        pairs = largest_pair_sums(params.quantize(weight), params.axis, groups).double() / limit
        return pairs.reshape(params.scale.shape)

    while bool(((factor := excess()) > 1).any()):
        scale = params.scale.double()
        grown = torch.where(factor > 1, scale * factor.clamp(min=_UP), scale)
        params = replace(params, scale=grown.float())
    return params


def _largest(rows: torch.Tensor, groups: int) -> torch.Tensor:
    """`largest_pair_sums` of [out, ...], by channel."""
    pairs = _pairs(tuple(rows.shape), groups)
    both = rows.flatten(1).to(torch.int64)[:, pairs]  # [out, pairs, 2]
    if not len(pairs):
        return torch.zeros(len(rows), dtype=torch.int64)
    sums = both.clamp(min=0).sum(-1), (-both).clamp(min=0).sum(-1)
    return torch.maximum(*sums).amax(1)


@lru_cache(maxsize=64)
def _pairs(shape: tuple[int, ...], groups: int) -> torch.Tensor:
    return saturating_pairs(shape, groups)
