"""Kernels of XNNPACK, LiteRT's default delegate, on int8 codes.

Products are accumulated in int32 and scaled once in float32; halves round to even. ADD and SUB
have multipliers of 21 bits. QUANTIZE and LEAKY_RELU have multipliers with 8 bits behind the point.
Both round halves up.

Sources: XNNPACK, src/microparams-init.c (the parameters of conv, add, mul, cvt), src/qs8-vadd,
src/qs8-vmul, src/qs8-vcvt, src/f32-qs8-vcvt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from qtool.backends.kernels.params import (
    NO_BOUNDS,
    Kernel,
    channel_scales,
    f32,
    operands,
    per_tensor,
)
from qtool.backends.kernels.products import ToCodes
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8, Bounds
from qtool.plugins.tflite.kernels.bounds import code_bounds, finish

_SUM_BITS, _REQUANTIZE_BITS = 20, 8


def scale_sums(
    x: QuantParams, w: QuantParams, out: QuantParams, channels: int, rank: int, bounds: Bounds
) -> ToCodes:
    """Bind f32(sum) * f32(f32(scale x * scale w) / scale out), halves to even.

    Of products of two activations, too, whose second operand has zero point 0. See
    `products.Scale`.
    """
    _check(x, w, out)
    scale_x, (scale, zero) = per_tensor(x, "input")[0], per_tensor(out, "output")
    factors = [f32(f32(scale_x * s) / scale) for s in channel_scales(w, channels)]
    by = torch.tensor(factors, dtype=torch.float32).reshape(channels, *[1] * rank)
    limits = code_bounds(out, bounds)

    def to_codes(sums: Tensor) -> Tensor:
        scaled = torch.round(sums.to(torch.float32) * by).to(torch.float64)
        return finish(scaled + zero, out, limits)

    return to_codes


def add(
    a: QuantParams,
    b: QuantParams,
    out: QuantParams,
    *,
    bounds: Bounds = NO_BOUNDS,
    pot_scale_int16: bool = True,  # of int16 alone
    sign: int = 1,
) -> Kernel:
    """Return the sum of two code tensors, which broadcast; the difference with the sign -1."""
    _check(a, b, out)
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    ratios = f32(scale_a / scale), f32(scale_b / scale)
    shift = _SUM_BITS - (math.frexp(max(ratios))[1] - 1)
    by_a, by_b = (round(math.ldexp(r, shift)) for r in ratios)  # halves to even, as lrintf
    by_b *= sign
    start, limits = (1 << (shift - 1)) - by_a * zero_a - by_b * zero_b, code_bounds(out, bounds)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        total = start + x.to(torch.int64) * by_a + y.to(torch.int64) * by_b
        return finish((total >> shift) + zero, out, limits)

    return kernel


sub = partial(add, sign=-1)


def mul(a: QuantParams, b: QuantParams, out: QuantParams, *, bounds: Bounds = NO_BOUNDS) -> Kernel:
    """Return the product of two code tensors, which broadcast."""
    _check(a, b, out)
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    factor, limits = f32(f32(scale_a * scale_b) / scale), code_bounds(out, bounds)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        product = (x.to(torch.int32) - zero_a) * (y.to(torch.int32) - zero_b)
        scaled = torch.round(product.to(torch.float32) * factor)
        return finish(scaled.to(torch.int64) + zero, out, limits)

    return kernel


def leaky_relu(x: QuantParams, out: QuantParams, *, alpha: float) -> Kernel:
    """Return x where it is positive and alpha * x elsewhere.

    Ratios of scales have 8 bits behind the point.
    """
    _check(x, out)
    (scale_in, zero_in), (scale_out, zero_out) = per_tensor(x, "input"), per_tensor(out, "output")
    ratio = f32(scale_in / scale_out)
    positive, negative = (round(256.0 * r) for r in (ratio, f32(ratio * f32(alpha))))
    half, limits = 1 << (_REQUANTIZE_BITS - 1), (out.qtype.qmin, out.qtype.qmax)

    def kernel(codes: Tensor) -> Tensor:
        real = codes.to(torch.int64) - zero_in
        product = torch.where(real < 0, real * negative, real * positive)
        return finish(((product + half) >> _REQUANTIZE_BITS) + zero_out, out, limits)

    return kernel


requantize = partial(leaky_relu, alpha=1.0)
"""Codes with other parameters."""


def mean(
    x: QuantParams, out: QuantParams, *, axes: Sequence[int], keep_dims: bool = True
) -> Kernel:
    """Return the mean over axes: the sum of the codes is scaled in float32, with one offset."""
    _check(x, out)
    (scale_in, zero_in), (scale_out, zero_out) = per_tensor(x, "input"), per_tensor(out, "output")
    ratio, limits = f32(scale_in / scale_out), (out.qtype.qmin, out.qtype.qmax)

    def kernel(codes: Tensor) -> Tensor:
        n = math.prod(codes.shape[axis] for axis in axes)
        by = f32(ratio * f32(1.0 / n))
        offset = f32(zero_out - f32(n * zero_in * by))
        sums = codes.to(torch.int64).sum(tuple(axes), keepdim=keep_dims)
        return finish(torch.round(sums.to(torch.float32) * by + offset), out, limits)

    return kernel


def quantize(out: QuantParams) -> Kernel:
    """Return float32 -> codes: the value times the reciprocal of the scale, halves to even."""
    scale, zero = per_tensor(out, "output")
    reciprocal = f32(1.0 / scale)
    limits = (out.qtype.qmin, out.qtype.qmax)

    def kernel(x: Tensor) -> Tensor:
        codes = torch.round(x.to(torch.float32) * reciprocal).to(torch.float64) + zero
        return finish(codes, out, limits)

    return kernel


def _check(*params: QuantParams) -> None:
    for each in params:
        if each.qtype.dtype != INT8.dtype:
            raise KernelError(f"XNNPACK's kernels take int8 here, not {each.qtype}")
