"""Products with weights in blocks of few bits, as ONNX Runtime computes them on int8 inputs.

Each row of inputs is rounded to int8, with a scale for each block. The products of 128 neighbours
are added to 16 sums in integers; these, times both scales, to 16 sums in float32, which are folded
at the end. Zero points are a second product, with the sums of the blocks of inputs. Which products
are added to which sum, and the order of folding, decide the last bits; both are those of the
kernels for AVX512-VNNI. Weights of 2 bits have an order of their own (two_bits.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from qtool.backends.kernels.fma import multiply_add
from qtool.backends.kernels.params import Kernel
from qtool.backends.onnxruntime.kernels.common import add_halves
from qtool.core.errors import KernelError
from qtool.core.packed_codes import unpack
from qtool.core.remedies import CallEdit
from qtool.core.schemes import KERNEL_BLOCKS

_STEP, _LANES = 128, 16
_AT_ONCE = 1 << 19
"""Sums in memory at once; larger products run in several groups of rows."""

_GROUP, _NEIGHBOURS, _PARTS = 4, 4, 16

Products = Callable[[Tensor, Tensor], Tensor]
"""Codes of inputs [rows, in] and their scales [rows, blocks] -> [rows, out]."""


def matmul_nbits(
    codes: Tensor, scale: Tensor, zero_point: Tensor, inputs: int, bits: int, bias: Tensor | None
) -> Kernel:
    """Bind the product: inputs [..., in] in float32 -> [..., out].

    Args:
        codes: uint8 [out, blocks, block], not packed.
        scale, zero_point: [out, blocks].
        inputs: the number of input features; the last block may be padded.
        bits: bit width of the weights, a key of KERNEL_BLOCKS.
        bias: float32 [out].

    Raises:
        KernelError: the runtime has no kernel on int8 inputs for blocks of this length.
    """
    outputs, _, block = codes.shape
    if block not in KERNEL_BLOCKS[bits]:
        raise KernelError(
            f"{bits}-bit weights in blocks of {block} have no integer kernel",
            CallEdit(f"use one of {KERNEL_BLOCKS[bits]}"),
        )
    multiply = _two_bit_products(codes, scale) if bits == 2 else _products(codes, scale, bits)
    offsets = (-scale * zero_point.to(torch.float32)).t().contiguous()
    rows_at_once = max(2, _AT_ONCE // (_LANES * outputs) // 2 * 2)

    def rows(x: Tensor) -> Tensor:
        rounded, scales, sums = _round(x, block)
        products = multiply(rounded, scales)
        products = products if bias is None else products + bias
        offset_sums = torch.zeros_like(products)
        for column, offset in zip(sums.unbind(1), offsets, strict=True):
            offset_sums = multiply_add(column[:, None], offset[None], offset_sums)
        return products + offset_sums

    def run(x: Tensor) -> Tensor:
        filled = F.pad(x.reshape(-1, inputs), (0, -inputs % block))
        parts = [rows(part) for part in filled.split(rows_at_once)]
        return torch.cat(parts).reshape(*x.shape[:-1], outputs)

    return run


def gather_nbits(packed: Tensor, bits: int, block: int) -> Kernel:
    """Bind a lookup: indices, scales and packed zero points -> rows of the first axis.

    Blocks lie along the last axis.
    """

    def run(indices: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Tensor:
        at = indices.to(torch.int64)
        at = torch.where(at < 0, at + len(packed), at)  # counted from the end
        codes = unpack(packed[at], packed.shape[-1] * 8 // bits, bits).to(torch.int32)
        scales = scale[at]
        zeros = torch.full(scales.shape, 2 ** (bits - 1))
        if zero_point is not None:
            zeros = unpack(zero_point[at], scales.shape[-1], bits).to(torch.int32)
        zeros, scales = (
            t.repeat_interleave(block, -1)[..., : codes.shape[-1]] for t in (zeros, scales)
        )
        return (codes - zeros).to(torch.float32) * scales

    return run


def _products(codes: Tensor, scale: Tensor, bits: int) -> Products:
    """Bind the products of codes [rows, in] and scales [rows, blocks]: [rows, out]."""
    outputs, _, block = codes.shape
    flat = codes.flatten(1)
    steps = [_Step.of(flat, each, block) for each in _steps(flat.shape[1], block)]

    def multiply(x: Tensor, scales: Tensor) -> Tensor:
        total = torch.zeros(_LANES, len(x), outputs, dtype=torch.float32)
        for step in steps:
            total = step.add(x, scales, scale, total)
        return _fold(total, bits, block)

    return multiply


@dataclass(frozen=True, eq=False)
class _Step:
    """Products that are added to the sums at once.

    Attributes:
        elements: their indices, [sums, products of each].
        blocks: the block of each sum; one for all sums of a common block.
        weight: the codes of these elements, [sums, products of each, out].
    """

    elements: Tensor
    blocks: Tensor
    weight: Tensor

    @classmethod
    def of(cls, codes: Tensor, elements: Tensor, block: int) -> _Step:
        """Return the step for codes [out, elements]."""
        weight = codes[:, elements.flatten()].t().reshape(*elements.shape, -1)
        blocks = elements[:, 0] // block
        return cls(elements, blocks.unique() if block >= _STEP else blocks, weight.contiguous())

    def add(self, x: Tensor, scales: Tensor, weight_scales: Tensor, total: Tensor) -> Tensor:
        """Add codes and scales of inputs [rows, ...] times scales of weights [out, blocks]."""
        total = _halve(total) if len(total) > len(self.elements) else total
        parts = x[:, self.elements.flatten()].reshape(len(x), *self.elements.shape)
        products = torch.bmm(parts.transpose(0, 1), self.weight.to(torch.float32))
        both = scales.t()[self.blocks, :, None] * weight_scales.t()[self.blocks, None]
        return multiply_add(products, both, total)


def _steps(length: int, block: int) -> list[Tensor]:
    """Return the elements of each step: 128 neighbours, and single blocks at the end."""
    whole = _in_sums(block)
    steps = [begin + whole for begin in range(0, length - _STEP + 1, _STEP)]
    lanes = _LANES if block > 32 else _LANES // 2
    last = torch.arange(block).reshape(lanes, -1)
    return steps + [begin + last for begin in range(len(steps) * _STEP, length, block)]


def _in_sums(block: int) -> Tensor:
    """Return which of 128 neighbours are added to which sum, [16, 8].

    They are added by fours, in two halves of 64, two fours to one sum of one block.
    """
    fours = torch.arange(_STEP).reshape(2, 4, 2, 2, 4)  # half, quarter, pair, in the pair, element
    if block > 64:
        return fours.permute(1, 2, 3, 0, 4).reshape(_LANES, -1)
    if block == 64:
        return fours.permute(1, 3, 0, 2, 4).reshape(_LANES, -1)
    return fours.permute(1, 0, 3, 2, 4).reshape(_LANES, -1)


def _round(x: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes of rows in whole blocks, scales, and sums of real values [rows, blocks]."""
    blocks = x.unflatten(1, (-1, block))
    peak, most = (
        blocks.abs().amax(-1),
        torch.tensor(127.0, dtype=torch.float32),
    )  # a number would be 127 * (1 / peak)
    inverse = torch.where(peak > 0, most / peak, 0.0)
    codes = (blocks * inverse[..., None]).round()
    scale = peak / most
    return codes.flatten(1), scale, scale * codes.sum(-1)


def _fold(total: Tensor, bits: int, block: int) -> Tensor:
    """Fold the sums of a column to one.

    Columns are processed by fours and rows by two, the remainders singly, each in its own order.
    """
    in_pairs = block > 32 and (bits, block) != (8, 64)
    total = _halve(total) if block <= 32 and len(total) == _LANES else total
    fours = total.shape[2] // 4 * 4
    folded = add_halves(total)
    if not in_pairs:
        folded[:, :fours] = _in_turn(total[..., :fours])
    elif len(folded) % 2:
        folded[-1, :fours] = _in_turn(total[:, -1, :fours])
    return folded


def _halve(total: Tensor) -> Tensor:
    return total[: len(total) // 2] + total[len(total) // 2 :]


def _in_turn(total: Tensor) -> Tensor:
    """Add each four one after the other, then the fours by halves."""
    fours = total.unflatten(0, (-1, 4)).unbind(1)
    return add_halves(((fours[0] + fours[1]) + fours[2]) + fours[3])


# A block has 16 integer sums (8 if it has 32 weights), each of the products of 4 neighbours; in a
# block of 128 the products of the second half are added to the sums of the first. Four blocks make
# a group. Its sums are multiplied by both scales in float32; the first and the third block are
# added, the second and the fourth, then these two. The groups are added to 16 totals, and these by
# halves.


def _two_bit_products(codes: Tensor, scale: Tensor) -> Products:
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
    if len(fours) <= _PARTS:
        return fours
    return fours.reshape(-1, _PARTS, _NEIGHBOURS).transpose(0, 1).flatten(1)
