"""Products added in 16 bits: which weights cannot saturate, proven per output channel.

x86 CPUs without VNNI multiply uint8 activations by int8 weights with vpmaddubsw, which adds two
neighbouring products with signed 16-bit saturation; vpmaddwd then widens the sums (ONNX Runtime:
QgemmU8X8KernelAvx2, QgemmU8S8KernelAvx512Core, ConvSymKernelAvx2, SymQgemmU8KernelAvx512). Which
weights are neighbours depends on layout and packing, so any two of a channel are taken to be. An
activation is 0 or more, hence the extremes are both weights of one sign at the highest code.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from qtool.types import QType, QuantParams

__all__ = ["largest_pairs", "pair_limit", "widened"]

_INT16_MAX = 2**15 - 1
_UP = 1 + 2.0**-20


def pair_limit(activation: QType) -> int:
    """The largest |w0 + w1| with |a0 * w0 + a1 * w1| within 16 bits for all activation codes."""
    return _INT16_MAX // activation.qmax


def largest_pairs(codes: torch.Tensor, axis: int | None) -> torch.Tensor:
    """The largest sum of two weights of equal sign, in absolute value, of each output channel.

    int64 [channels]; one channel for `axis` None.
    """
    rows = codes.reshape(1, -1) if axis is None else codes.movedim(axis, 0).flatten(1)
    rows = rows.to(torch.int64)
    count = min(2, rows.shape[1])
    above = rows.clamp(min=0).topk(count, dim=1).values.sum(dim=1)
    below = (-rows).clamp(min=0).topk(count, dim=1).values.sum(dim=1)
    return torch.maximum(above, below)


def widened(weight: torch.Tensor, params: QuantParams, limit: int) -> QuantParams:
    """Parameters under which no pair of a channel exceeds `limit`.

    The scale of a channel that already keeps to it is untouched; any other grows by as much as its
    two largest weights need, at most to what 7 bits would have.
    """
    while bool((excess := _excess(weight, params, limit) > 1).any()):
        grown = params.scale.double() * _excess(weight, params, limit).clamp(min=_UP)
        scale = torch.where(excess.reshape(params.scale.shape), grown, params.scale.double())
        params = replace(params, scale=scale.float())
    return params


def _excess(weight: torch.Tensor, params: QuantParams, limit: int) -> torch.Tensor:
    """By how much each channel's largest pair of codes exceeds the limit, as a factor."""
    pairs = largest_pairs(params.quantize(weight), params.axis).double() / limit
    return pairs.reshape(params.scale.shape)
