"""Products with 2-bit weights on int8 inputs, in the order of ONNX Runtime's kernel for AVX512.

A block has 16 integer sums (8 if it has 32 weights), each of the products of 4 neighbours; in a
block of 128 the products of the second half are added to the sums of the first. Four blocks make a
group. Its sums are multiplied by both scales in float32; the first and the third block are added,
the second and the fourth, then these two. The groups are added to 16 totals, and these by halves.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qtool.backends.kernels.fma import multiply_add
from qtool.backends.onnxruntime.kernels.common import add_halves

_GROUP, _NEIGHBOURS, _LANES = 4, 4, 16

Products = Callable[[Tensor, Tensor], Tensor]
"""Codes of inputs [rows, in] and their scales [rows, blocks] -> [rows, out]."""


def two_bit_products(codes: Tensor, scale: Tensor) -> Products:
    """Bind the products of codes.

    Args:
        codes: uint8 [out, blocks, block], not packed.
        scale: [out, blocks].
    """
    outputs, count, block = codes.shape
    elements = _in_lanes(block)
    weights = [
        codes[:, at].to(torch.float32)[:, elements].permute(1, 2, 0).contiguous()
        for at in range(count)
    ]

    def one_block(x: Tensor, scales: Tensor, at: int) -> tuple[Tensor, Tensor]:
        """Return the sums [lanes, rows, out] of a block, and both scales multiplied [rows, out]."""
        inputs = x[:, at * block : (at + 1) * block][:, elements]  # [rows, lanes, products]
        sums = torch.bmm(inputs.transpose(0, 1), weights[at])
        return sums, scales[:, at, None] * scale[:, at]

    def multiply(x: Tensor, scales: Tensor) -> Tensor:
        total = torch.zeros(len(elements), len(x), outputs, dtype=torch.float32)
        for begin in range(0, count, _GROUP):
            pair = []
            for first in range(begin, min(begin + 2, count)):
                sums, factor = one_block(x, scales, first)
                part = sums * factor
                if first + 2 < min(begin + _GROUP, count):
                    sums, factor = one_block(x, scales, first + 2)
                    part = multiply_add(sums, factor, part)
                pair.append(part)
            total = total + (pair[0] + pair[1] if len(pair) == 2 else pair[0])
        return add_halves(total)

    return multiply


def _in_lanes(block: int) -> Tensor:
    """Return which elements of a block are added to which sum, [sums, products of each]."""
    fours = torch.arange(block).reshape(-1, _NEIGHBOURS)
    if len(fours) <= _LANES:
        return fours
    return fours.reshape(-1, _LANES, _NEIGHBOURS).transpose(0, 1).flatten(1)
