"""QLinearAdd and QLinearMul of MLAS on processors other than x86-64 with AVX2."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from qtool.backends.kernels.codes import all_codes
from qtool.backends.kernels.fma import fma32
from qtool.backends.kernels.params import Kernel
from qtool.backends.onnxruntime.kernels.elementwise import (
    by_pairs,
    first_repeats,
    operands,
    pair_table,
)
from qtool.core.quant_params import QuantParams

Combine = Callable[[Tensor, Tensor], Tensor]
_LOWEST_RATIO, _RATIO_LIMIT = 2.0**-14, 2.0**8
_BITS = 22  # of the larger multiplier


# QLinearAdd and QLinearMul of MLAS without vector instructions: WebAssembly, and ARM in part.
#
# Codes are dequantized, added or multiplied in float32, divided by the output's scale and clamped;
# the zero point is added before the rounding. Sources: onnxruntime/core/mlas/lib/qladd.cpp
# (MlasQLinearAddKernelRawHelper), qlmul.cpp.


def generic_add(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    """Addition of two code tensors of one 8-bit type (broadcasting).

    rint(clamp(f32(f32(f32(sa (a - za)) + f32(sb (b - zb))) / sc)) + zc).
    """
    return _combined(a, b, out, torch.add)


def generic_mul(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    """Product of two code tensors of one 8-bit type (broadcasting), as `generic_add`."""
    return _combined(a, b, out, torch.mul)


def _combined(a: QuantParams, b: QuantParams, out: QuantParams, combine: Combine) -> Kernel:
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    low, high = out.qtype.qmin - zero, out.qtype.qmax - zero

    def values(x: Tensor, y: Tensor) -> Tensor:
        real = combine((x - zero_a) * scale_a, (y - zero_b) * scale_b)
        return (real / scale).clamp(low, high) + zero

    return by_pairs(a, out, values)


# QLinearAdd of MLAS on x86-64 without AVX2: float32, without fused multiply-add.
#
# Source: onnxruntime/core/mlas/lib/qladd.cpp (MlasQLinearAddKernelHelper for SSE2).


def sse_add(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    """Rescaled addition of two code tensors of one 8-bit type (broadcasting).

    With ra = f32(sa / sc), rb = f32(sb / sc) and c = zc - (ra * za + rb * zb) the runtime computes
    rint((c + a * ra) + b * rb), each operation rounded to float32. An operand that is repeated
    along the innermost axis is added to c first.
    """
    operands(a, b, out)  # checks them

    @cache
    def straight() -> Kernel:
        return _in_order(a, b, out)

    @cache
    def exchanged() -> Kernel:
        return _in_order(b, a, out)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        if first_repeats(y.shape, x.shape) and not first_repeats(x.shape, y.shape):
            return exchanged()(y, x)
        return straight()(x, y)

    return kernel


def _in_order(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    ratio_a, ratio_b = scale_a / scale, scale_b / scale
    fixed = zero - (ratio_a * zero_a + ratio_b * zero_b)
    return by_pairs(a, out, lambda x, y: (fixed + x * ratio_a) + y * ratio_b)


# QLinearAdd of MLAS on 64-bit ARM, which is fixed point, and QLinearMul.
#
# Sources: onnxruntime/core/mlas/lib/qladd.cpp (MlasCalcQLinearAddParameters) and qlmul.cpp, each
# for NEON.


def neon_add(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    """Rescaled addition of two code tensors of one 8-bit type (broadcasting).

    round((a - za) * ma + (b - zb) * mb, shift) + zc in int32, halves away from zero, where ma and
    mb are sa / sc and sb / sc with a common shift that gives the larger one 22 bits. Ratios beyond
    [2**-14, 256), and a multiplier that rounds up to 23 bits, are computed as by `generic_add`.
    """
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    multipliers = _multipliers(float(scale_a / scale), float(scale_b / scale))
    if multipliers is None:
        return generic_add(a, b, out)
    multiplier_a, multiplier_b, shift = multipliers
    codes = all_codes(a)
    values = codes.to(torch.int64)
    total = (values.reshape(-1, 1) - zero_a) * multiplier_a + (values - zero_b) * multiplier_b
    sums = _rounded_shift(total.to(torch.int32).to(torch.int64), shift)
    return pair_table(
        (sums + zero).clamp(out.qtype.qmin, out.qtype.qmax).to(codes.dtype), int(codes[0])
    )


def neon_mul(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    """Product of two code tensors of one 8-bit type (broadcasting).

    rint(fma((a - za)(b - zb), f32(f32(sa * sb) / sc), zc)): one rounding less than on x86.
    """
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    factor, offset = scale_a * scale_b / scale, torch.tensor(float(zero), dtype=torch.float32)
    return by_pairs(a, out, lambda x, y: fma32((x - zero_a) * (y - zero_b), factor, offset))


def _multipliers(ratio_a: float, ratio_b: float) -> tuple[int, int, int] | None:
    """Integer multipliers and their common shift; None where the runtime computes in float."""
    if not all(_LOWEST_RATIO <= ratio < _RATIO_LIMIT for ratio in (ratio_a, ratio_b)):
        return None
    shift = _BITS - math.frexp(max(ratio_a, ratio_b))[1]
    if not 13 <= shift <= 31:
        return None
    multipliers = [round(ratio * 2**shift) for ratio in (ratio_a, ratio_b)]
    return None if max(multipliers) >= 1 << _BITS else (*multipliers, shift)


def _rounded_shift(x: Tensor, shift: int) -> Tensor:
    """x / 2**shift in int64, halves away from zero."""
    adjusted = torch.where(x < 0, x - 1, x)
    return (adjusted + (1 << (shift - 1))) >> shift
