"""LiteRT's own optimized kernels on x86-64, for what its default delegate leaves to them.

They compute blocks with SIMD instructions, in other roundings than the rest.

Sources: tflite/kernels/internal/optimized/optimized_ops.h (AffineQuantize, Quantize);
tflite/kernels/internal/optimized/integer_ops/transpose_conv.h (TransposeConvV2).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from qtool.backends.kernels import fixed_point as fp
from qtool.backends.kernels.params import Kernel, f32, per_tensor
from qtool.core.quant_params import QuantParams
from qtool.plugins.tflite.kernels.bounds import finish
from qtool.plugins.tflite.kernels.quantize import round_half_away_tensor
from qtool.plugins.tflite.kernels.scaling import scale_by_channel

_BLOCK = 8  # elements, or channels


def quantize(out: QuantParams) -> Kernel:
    """Return float32 -> codes.

    Blocks are multiplied by the reciprocal of the scale, halves to even; the rest of the tensor is
    divided in float64, halves away from zero.
    """
    scale, zero = per_tensor(out, "output")
    reciprocal = f32(1.0 / scale)
    limits = (out.qtype.qmin, out.qtype.qmax)

    def kernel(x: Tensor) -> Tensor:
        flat = x.to(torch.float32).flatten()
        end = len(flat) // _BLOCK * _BLOCK
        blocks = torch.round(flat[:end] * reciprocal).to(torch.float64)
        rest = round_half_away_tensor(flat[end:].to(torch.float64) / scale)
        return finish(torch.cat([blocks, rest]) + zero, out, limits).reshape(x.shape)

    return kernel


def _multiply(x: Tensor, by: fp.Multiplier) -> Tensor:
    """Return products that are rounded twice, at last with ties up in blocks of channels."""
    channels = x.shape[1]
    high = fp.saturating_rounding_doubling_high_mul(
        fp.wrap32(x << by.exponent.clamp(min=0)), by.mantissa
    )
    right = (-by.exponent).clamp(min=0)
    in_block = torch.arange(channels).reshape(by.exponent.shape) < channels // _BLOCK * _BLOCK
    return torch.where(
        in_block, fp.rounding_shift_right(high, right), fp.rounding_divide_by_pot(high, right)
    )


scale_transposed = partial(scale_by_channel, multiply=_multiply)
"""How the sums of a transposed convolution are scaled."""
