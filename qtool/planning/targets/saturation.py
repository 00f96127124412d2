"""Weights whose products cannot saturate when pairs of them are added in 16 bits.

x86 CPUs without VNNI multiply uint8 activations by int8 weights with vpmaddubsw, which adds two
neighbouring products with signed 16-bit saturation; vpmaddwd then widens the sums. How a runtime
packs weights decides which are neighbours (core/weight_pairs.py). Activations are 0 or more, so the
extremes are two weights of one sign at the highest activation code.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from qtool.core.quant_params import QuantParams
from qtool.core.types import QType
from qtool.core.weight_pairs import saturating_pairs

_INT16_MAX = 2**15 - 1
_UP = 1 + 2.0**-20
_pairs = lru_cache(maxsize=64)(saturating_pairs)


def saturation_limit(activation: QType) -> int:
    """Return the largest |w0 + w1| with |a0 * w0 + a1 * w1| < 2**15 for all activation codes."""
    return _INT16_MAX // activation.qmax


@lru_cache(maxsize=64)
def pair_partners(shape: tuple[int, ...], groups: int = 1) -> torch.Tensor:
    """Return the weights that each weight of an output channel can meet in a pair.

    Args:
        shape: shape of the weight, [out, in / groups, *kernel] or [out, in].
        groups: groups of the convolution.

    Returns:
        int64 [weights of a channel, 2], indices into the flattened channel; -1 for none.
    """
    table = torch.full((torch.Size(shape[1:]).numel(), 2), -1)
    for one, other in _pairs(shape, groups).tolist():
        for a, b in ((one, other), (other, one)):
            table[a, int(table[a, 0] >= 0)] = b
    return table


def largest_pair_sums(codes: torch.Tensor, axis: int | None, groups: int = 1) -> torch.Tensor:
    """Return the largest absolute sum of two weights of equal sign that can meet.

    Args:
        codes: [out, in / groups, *kernel] with axis 0 (or None: one result for all channels);
            with axis 1 a matrix [in, out], or the weights [directions, out, in] of a recurrent
            layer, whose directions are separate products.
        axis: dimension of the output channels.
        groups: groups of the convolution.

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
    """Return parameters under which no pair exceeds `limit` when weights are rounded to nearest.

    A channel that already keeps the limit keeps its scale. Any other scale grows by as much as the
    largest pair needs, at most to the scale of 7 bits.
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
    pairs, flat = _pairs(tuple(rows.shape), groups), rows.flatten(1).to(torch.int16)
    if not len(pairs):
        return torch.zeros(len(rows), dtype=torch.int64)
    one, other = (flat.index_select(1, side) for side in pairs.T)
    sums = ((one * s).clamp(min=0) + (other * s).clamp(min=0) for s in (1, -1))
    return torch.maximum(*(each.amax(1) for each in sums)).to(torch.int64)


def shrink_pairs(
    codes: torch.Tensor, axis: int | None, limit: int, groups: int = 1
) -> torch.Tensor:
    """Return codes of which no pair exceeds `limit`: the larger of two weights shrinks.

    Args:
        codes, axis, groups: as for `largest_pair_sums`.
        limit: largest absolute sum of two weights of one sign.
    """
    rows = codes.movedim(axis or 0, 0).to(torch.int64, copy=True)
    parts = [rows[:, d] for d in range(rows.shape[1])] if axis == 1 and codes.dim() == 3 else [rows]
    for part in parts:
        part.copy_(_shrunk(part, limit, groups))
    return rows.movedim(0, axis or 0).to(codes.dtype)


def _shrunk(rows: torch.Tensor, limit: int, groups: int) -> torch.Tensor:
    pairs, flat = _pairs(tuple(rows.shape), groups), rows.flatten(1)
    while len(pairs):
        one, other = flat[:, pairs[:, 0]], flat[:, pairs[:, 1]]
        excess = torch.where(one * other > 0, (one + other).abs() - limit, 0).clamp(min=0)
        if not bool(excess.any()):
            break
        first = one.abs() >= other.abs()
        cut = torch.zeros_like(flat)
        for side, chosen in ((0, first), (1, ~first)):
            index = pairs[:, side].expand(len(flat), -1)
            cut.scatter_reduce_(1, index, torch.where(chosen, excess, 0), "amax")
        flat = flat - flat.sign() * cut
    return flat.reshape(rows.shape)
