"""Products of uint8 and int8 codes on x86-64 with AVX2 and without VNNI.

MLAS adds two neighbouring products in 16 bits that saturate (see `qtool.core.weight_pairs`). The
loss by saturation is computed for those pairs of weights that can saturate, and subtracted from the
exact sum. Pads contribute with the code of the zero point; zero points are subtracted afterwards.

Sources: onnxruntime/core/mlas/lib/x86_64/QgemmU8X8KernelAvx2.S, ConvSymKernelAvx2.S;
onnxruntime/core/providers/cpu/quantization/qlinearconv.cc.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qtool.backends.kernels import accumulate
from qtool.backends.kernels.params import spatial
from qtool.backends.kernels.windows import pad_spatial, window_taps
from qtool.core.quant_params import QuantParams
from qtool.core.weight_pairs import consecutive_pairs, excess

_LOWEST, _HIGHEST = -(2**15), 2**15 - 1
_PIECE = 2**22
"""Products in memory at once."""

Columns = Callable[[Tensor], Tensor]
"""Codes -> what each product reads: uint8 [samples, rows, positions]."""


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The pairs of weights that can saturate, sorted by output channel; all tensors are [pairs].

    Attributes:
        outputs: their output channels.
        first, second: rows of the columns that they are multiplied with.
        weights: float32 [2, pairs].
    """

    outputs: Tensor
    first: Tensor
    second: Tensor
    weights: Tensor

    @classmethod
    def of(cls, weight: Tensor, groups: int) -> _Pairs:
        """Return the pairs of weight codes [out, in / groups, *kernel]."""
        pairs = consecutive_pairs(weight.shape, groups)
        rows = max(1, _PIECE // max(1, len(pairs)))
        parts = [excess(part, pairs).nonzero() for part in weight.split(rows)]
        shifts = [torch.tensor([i * rows, 0]) for i in range(len(parts))]
        outputs, index = torch.cat([p + s for p, s in zip(parts, shifts, strict=True)]).unbind(1)
        positions, inputs = math.prod(weight.shape[2:]), weight.shape[1]
        group = outputs // max(1, len(weight) // groups) * inputs
        flat = pairs[index]
        channel = torch.div(flat, max(1, positions), rounding_mode="floor") + group[:, None]
        rows_read = flat % max(1, positions) * (inputs * groups) + channel
        weights = weight.flatten(1)[outputs[:, None], flat].to(torch.float32)
        return cls(outputs, rows_read[:, 0], rows_read[:, 1], weights.t().contiguous())

    def where(self, mask: Tensor) -> _Pairs:
        return _Pairs(
            self.outputs[mask], self.first[mask], self.second[mask], self.weights[:, mask]
        )

    def saturating(self, columns: Tensor) -> _Pairs:
        """Return the pairs that saturate with the largest codes of these columns."""
        largest = columns.amax((0, 2)).to(torch.float32)
        one, other = (
            self.weights * torch.stack([largest[self.first], largest[self.second]])
        ).unbind()
        above = one.clamp(min=0) + other.clamp(min=0)
        below = one.clamp(max=0) + other.clamp(max=0)
        return self.where((above > _HIGHEST) | (below < _LOWEST))

    def lost(self, columns: Tensor, channels: int) -> Tensor:
        """Return what saturation adds to the sums: float64 [samples, channels, positions]."""
        samples, _, positions = columns.shape
        total = torch.zeros(samples, channels, positions, dtype=torch.float64)
        step = max(1, _PIECE // max(1, samples * positions))
        for start in range(0, len(self.outputs), step):
            cut = slice(start, start + step)
            one, other = self.weights[:, cut, None]
            sums = columns[:, self.first[cut]] * one + columns[:, self.second[cut]] * other
            change = (sums.clamp(_LOWEST, _HIGHEST) - sums).to(torch.float64)
            total.index_add_(1, self.outputs[cut], change)
        return total


def conv_sums(
    x: QuantParams,
    w: QuantParams,
    weight: Tensor,
    bias: Tensor | None,
    *,
    stride: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> accumulate.Accumulate:
    """As `accumulate.conv_accumulator`, with saturation."""
    rank = weight.dim() - 2
    strides, dilations = spatial(stride, rank, "stride"), spatial(dilation, rank, "dilation")
    edges, zero = spatial(pads, 2 * rank, "pads"), float(x.zero_point)
    sums = accumulate.conv_accumulator(
        x, w, weight, bias, stride=strides, pads=edges, dilation=dilations, groups=groups
    )

    def columns(codes: Tensor) -> Tensor:
        padded = pad_spatial(codes, edges, zero)
        taps = window_taps(padded, weight.shape[2:], strides, dilations)
        return torch.stack(taps, 1).flatten(1, 2).flatten(2)

    return _saturating(sums, x, w, weight, groups, columns)


def product_sums(
    x: QuantParams, w: QuantParams, weight: Tensor, bias: Tensor | None = None
) -> accumulate.Accumulate:
    """sum((x - zx) * (w - zw)) + bias: codes [..., I], weight codes [O, I] -> [..., O]."""
    sums = accumulate.linear_accumulator(x, w, weight, bias)

    def columns(codes: Tensor) -> Tensor:
        return codes.reshape(1, -1, codes.shape[-1]).transpose(1, 2)

    return _saturating(sums, x, w, weight, 1, columns)


def matmul_sums(a: QuantParams, b: QuantParams) -> accumulate.Accumulate:
    """As `accumulate.matmul_accumulator`; saturates for uint8 times int8 only."""
    exact = accumulate.matmul_accumulator(a, b)

    def saturating(left: Tensor, right: Tensor) -> Tensor:
        total = exact(left, right).to(torch.float64)
        for k in range(0, left.shape[-1] // 2 * 2, 2):
            one, other = (
                left[..., i : i + 1].to(torch.float32) * right[..., i : i + 1, :]
                for i in (k, k + 1)
            )
            sums = one + other
            total += sums.clamp(_LOWEST, _HIGHEST) - sums
        return total

    return saturating if b.qtype.signed and not a.qtype.signed else exact


def _saturating(
    sums: accumulate.Accumulate,
    x: QuantParams,
    w: QuantParams,
    weight: Tensor,
    groups: int,
    columns: Columns,
) -> accumulate.Accumulate:
    """Return exact sums plus what saturation adds; `sums` itself where nothing can saturate."""
    if x.qtype.signed or not w.qtype.signed:
        return sums
    pairs = _Pairs.of(weight, groups)
    if not len(pairs.outputs):
        return sums

    def run(codes: Tensor) -> Tensor:
        total = sums(codes)
        if not total.numel():
            return total
        read = columns(codes)
        saturating = pairs.saturating(read)
        if not len(saturating.outputs):
            return total
        lost = saturating.lost(read, len(weight))
        lost = lost[0].t() if weight.dim() == 2 else lost  # rows of a product are positions
        return total.to(torch.float64) + lost.reshape(total.shape)

    return run
