"""Products summed in 16 bits: the pairs of weights that meet, and the limit that they must keep.

x86 CPUs without VNNI multiply uint8 activations by int8 weights with vpmaddubsw, which adds two
neighbouring products with signed 16-bit saturation; vpmaddwd then widens the sums (ONNX Runtime:
QgemmU8X8KernelAvx2, QgemmU8S8KernelAvx512Core, ConvSymKernelAvx2, SymQgemmU8KernelAvx512). An
activation is 0 or more, hence the extremes are both weights of one sign at the highest code.

Neighbours are those of the packed weight. ONNX Runtime packs a convolution tap by tap with the
input channels of a group innermost, and a matrix along its inputs: weights 2i and 2i + 1 of that
order meet. Kernels that take each tap by itself (oneDNN, in OpenVINO) pair channels 2i and 2i + 1
of a tap. The two differ where a group has an odd number of channels; both are counted then.
Measured on an emulated Haswell with one output channel for each pair of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import torch

from qtool.types import QType, QuantParams

__all__ = ["largest_pairs", "pair_limit", "partners", "widened"]

_INT16_MAX = 2**15 - 1
_UP = 1 + 2.0**-20


def pair_limit(activation: QType) -> int:
    """The largest |w0 + w1| with |a0 * w0 + a1 * w1| within 16 bits for all activation codes."""
    return _INT16_MAX // activation.qmax


def partners(channel: Sequence[int]) -> torch.Tensor:
    """For each weight of an output channel the weights that it can meet in a pair.

    Args:
        channel: the shape of one output channel: [inputs, *kernel].

    Returns:
        int64 [weights, 2], indices into the flattened channel; -1 for none.
    """
    inputs, taps = channel[0], prod(channel[1:])
    table = torch.full((inputs * taps + 1, 2), -1)
    first = _first_of_pairs(inputs, taps)
    original = torch.arange(inputs * taps).reshape(inputs, taps).T.flatten()  # of the packed order
    table[original[first], 0] = original[first + 1]
    table[original[first + 1], 1] = original[first]
    return table[:-1]


def largest_pairs(codes: torch.Tensor, axis: int | None) -> torch.Tensor:
    """The largest sum of two weights of equal sign that can meet, in absolute value.

    Args:
        codes: [out, in, *kernel], or a matrix.
        axis: of the output channels; None: they are on axis 0, and there is one result for all.

    Returns:
        int64 [channels], or a scalar for `axis` None.
    """
    rows, shape = _packed(codes, axis or 0)
    first = _first_of_pairs(shape[0], prod(shape[1:]))
    above, below = rows.clamp(min=0), (-rows).clamp(min=0)
    sums = [part[:, first] + part[:, first + 1] for part in (above, below)]
    alone = rows.abs()  # a single weight meets nothing
    largest = torch.cat([*sums, alone], dim=1).amax(1)
    return largest.amax() if axis is None else largest


def widened(weight: torch.Tensor, params: QuantParams, limit: int) -> QuantParams:
    """Parameters under which no pair exceeds `limit` when weights are rounded to nearest.

    The scale of a channel that already keeps to it is untouched; any other grows by as much as its
    largest pair needs, at most to what 7 bits would have.
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


def _packed(codes: torch.Tensor, axis: int) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Codes in the order in which they are packed, int64 [channels, weights]; and the shape
    [inputs, *kernel] of a channel."""
    channels = codes.movedim(axis, 0)
    shape = tuple(channels.shape[1:])
    return channels.movedim(1, -1).flatten(1).to(torch.int64), shape


@lru_cache(maxsize=64)
def _first_of_pairs(inputs: int, taps: int) -> torch.Tensor:
    """Where pairs begin in the packed order of a channel, int64, ascending."""
    whole = torch.arange(0, inputs * taps - 1, 2)
    in_tap = torch.arange(0, inputs - 1, 2)
    by_tap = (torch.arange(taps)[:, None] * inputs + in_tap).flatten()
    return torch.cat([whole, by_tap]).unique()
