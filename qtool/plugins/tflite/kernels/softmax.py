"""TFLite SOFTMAX, reference kernel: gemmlowp fixed point for 8 bits, tables for int16.

Q-numbers: raw = value * 2**f with f fractional bits in 31. Source: tflite/kernels/activations.cc
(SoftmaxPrepare); tflite/kernels/internal/reference/softmax.h; tflite/kernels/internal/common.h
(GetReciprocal, LUTPopulateInt16); gemmlowp fixedpoint/fixedpoint.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qtool.backends.kernels import fixed_point as fp
from qtool.backends.kernels.params import Kernel, f32, is_int16
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams, torch_dtype
from qtool.core.remedies import CallEdit
from qtool.core.types import INT16, UINT8
from qtool.plugins.tflite.kernels.bounds import in_and_out
from qtool.plugins.tflite.kernels.quantize import round_half_away_tensor

_ONE = 2**31 - 1
_EXP_MINUS_EIGHTH = 1895147668  # exp(-1/8) in Q0.31
_ONE_THIRD = 715827883
_48_OVER_17, _NEG_32_OVER_17 = 1515870810, -1010580540  # Q2.29
# exp(-2**k) in Q0.31 for k = -2 .. 4, one factor for each bit of the remainder
_EXP_OF_POWERS = tuple(round(math.exp(-(2.0**k)) * 2**31) for k in range(-2, 5))
_LUT_STEPS = 512


def softmax(
    x: QuantParams,
    out: QuantParams,
    *,
    axis: int = -1,
    beta: float = 1.0,
    in_float64: bool = True,
) -> Kernel:
    """Return the kernel: codes -> codes of softmax(beta * x) along `axis`.

    The kernel raises KernelError if the exponentials of a row sum to 512 or more, where the runtime
    aborts.

    Args:
        x: per-tensor parameters of the input; int16: zero point 0.
        out: int8: scale 1/256, zero point -128; int16: scale 1/32768, zero point 0.
        axis: axis of the softmax.
        beta: factor of the input.
        in_float64: the tables of int16 are computed in float64 instead of float32.

    Raises:
        KernelError: output parameters that the runtime refuses, or a beta * scale so small that its
            factor does not exceed 1.
    """
    scale_in, zero_in, scale_out, zero_out = in_and_out(x, out)
    wide = is_int16(x.qtype)
    expected_scale = 1 / 32768 if wide else 1 / 256
    expected_zero = 0 if wide else x.qtype.qmin
    checked = x.qtype.dtype != UINT8.dtype  # the runtime does not check uint8
    off = abs(scale_out - expected_scale) > f32(0.001 * expected_scale)
    if checked and (zero_out != expected_zero or off or (wide and zero_in != 0)):
        raise KernelError(
            f"SOFTMAX has the fixed output scale {expected_scale} and zero point "
            f"{expected_zero}, not {scale_out:.6g} and {zero_out}",
            CallEdit("fix the output's parameters"),
        )
    rows = _int16_rows(scale_in, f32(beta), in_float64) if wide else _int8_rows(scale_in, f32(beta))

    def kernel(codes: Tensor) -> Tensor:
        last = codes.to(torch.int64).movedim(axis, -1)
        result = rows(last - last.amax(-1, keepdim=True))
        if not wide:
            result = (result + out.qtype.qmin).clamp(out.qtype.qmin, out.qtype.qmax)
        return result.movedim(-1, axis).to(torch_dtype(out.qtype))

    return kernel


def _int8_rows(scale: float, beta: float) -> Callable[[Tensor], Tensor]:
    real = min(beta * scale * (1 << 26), 2.0**31 - 1)
    if real <= 1.0:
        raise KernelError(
            f"SOFTMAX cannot represent beta * input scale = {beta * scale:.3g}, the "
            "runtime aborts at 2**-26 and below",
            CallEdit("use a larger input scale"),
        )
    by = fp.quantize_multiplier(real)
    shift = int(by.exponent)
    lowest = -math.floor(31 * 2.0**26 / 2.0**shift)

    def rows(diff: Tensor) -> Tensor:
        counted = diff >= lowest
        # The factor exceeds 1: a left shift first, and no rounding shift after it.
        scaled = fp.saturating_rounding_doubling_high_mul(
            fp.wrap32(diff.clamp(min=lowest) << shift), by.mantissa
        )
        exps = torch.where(counted, exp_on_negative(scaled), 0)
        sums = fp.rounding_divide_by_pot(exps, 12).sum(-1, keepdim=True)
        if bool((sums >= 1 << 28).any()):
            raise KernelError(
                "SOFTMAX over a row whose exponentials sum to 512 or more: the runtime aborts",
                CallEdit("shorten the row or leave the softmax in float"),
            )
        scale_raw, bits = _reciprocal(sums)
        product = fp.saturating_rounding_doubling_high_mul(scale_raw, exps)
        return torch.where(counted, fp.rounding_divide_by_pot(product, bits + 23), 0)

    return rows


def exp_on_negative(a: Tensor, fraction: int = 26) -> Tensor:
    """Return exp of numbers <= 0 as Q0.31: a polynomial, and a factor per higher bit.

    Args:
        a: Q5.26, or other numbers above -2**(31 - fraction).
        fraction: number of fractional bits.
    """
    quarter = 1 << (fraction - 2)
    within = (a & (quarter - 1)) - quarter
    result = _exp_on_quarter(within << (31 - fraction))
    remainder = within - a
    for bit, factor in enumerate(_EXP_OF_POWERS):
        scaled = fp.saturating_rounding_doubling_high_mul(result, torch.tensor(factor))
        result = torch.where((remainder & (quarter << bit)) != 0, scaled, result)
    return torch.where(a == 0, _ONE, result)


def _exp_on_quarter(a: Tensor) -> Tensor:
    """Return exp on [-1/4, 0) in Q0.31: the fourth-order expansion around -1/8."""
    high_mul = fp.saturating_rounding_doubling_high_mul
    x = a + (1 << 28)
    x2 = high_mul(x, x)
    x3, x4 = high_mul(x2, x), high_mul(x2, x2)
    third = high_mul(fp.rounding_divide_by_pot(x4, 2) + x3, torch.tensor(_ONE_THIRD))
    tail = fp.rounding_divide_by_pot(third + x2, 1)
    constant = torch.tensor(_EXP_MINUS_EIGHTH)
    return (constant + high_mul(constant, x + tail)).clamp(max=_ONE)


def _reciprocal(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1 / sums for Q12.19 sums >= 1: Q0.31 mantissa in (1/2, 1], bits above unity."""
    headroom = 31 - _floor_log2(sums)
    a = (sums << headroom) - (1 << 31)
    half = half_of_one_plus(a)
    return fp.saturating_left_shift(newton_reciprocal(half), 1), 12 - headroom


def half_of_one_plus(x: Tensor) -> Tensor:
    """Return (1 + x) / 2 of Q0.31 numbers >= 0: nearest, ties up."""
    return (x + _ONE + 1) >> 1


def newton_reciprocal(half: Tensor) -> Tensor:
    """Return 1 / half in Q2.29, of Q0.31 numbers from 1/2 to 1: three steps of Newton's method."""
    high_mul = fp.saturating_rounding_doubling_high_mul
    x = _48_OVER_17 + high_mul(half, torch.tensor(_NEG_32_OVER_17))
    for _ in range(3):
        rest = (1 << 29) - high_mul(half, x)
        x = x + fp.saturating_left_shift(high_mul(x, rest), 2)
    return x


def _floor_log2(x: Tensor) -> Tensor:
    """Return the position of the highest set bit of positive integers below 2**53."""
    return torch.frexp(x.to(torch.float64)).exponent.to(torch.int64) - 1


def _int16_rows(scale: float, beta: float, in_float64: bool) -> Callable[[Tensor], Tensor]:
    by = fp.quantize_multiplier(f32(scale * beta) / (10.0 / 65535.0))
    dtype = torch.float64 if in_float64 else torch.float32
    exp_lut = _lut(-10.0, 0.0, lambda v: v.double().exp().to(dtype), dtype)
    inverse_lut = _lut(0.0, 1.0, lambda v: 1.0 / (1.0 + v), dtype)

    def rows(diff: Tensor) -> Tensor:
        position = fp.multiply_by_quantized_multiplier(diff, by) + 32767
        exps = _interpolate(position.clamp(-32768, 32767), exp_lut)
        sums = exps.sum(-1, keepdim=True)
        headroom = 31 - _floor_log2(sums)
        shifted = ((sums << (headroom - 1)) + (1 << 13)) >> 14
        centred = (shifted - (1 << 15) - (1 << 16)).clamp(-32768, 32767)
        right = 31 - headroom
        product = exps * _interpolate(centred, inverse_lut)
        return ((product + (torch.ones_like(right) << (right - 1))) >> right).clamp(0, 32767)

    return rows


def _lut(low: float, high: float, function: Callable[[Tensor], Tensor], dtype: Any) -> Tensor:
    """Return 513 int16 samples of a function on [low, high], times 2**15.

    Each is shifted by half the error of linear interpolation at the middle of the step.

    Args:
        low: the first argument.
        high: the last one.
        function: takes and returns tensors.
        dtype: type of every step of the computation.
    """
    step = (high - low) / _LUT_STEPS
    places = low + torch.arange(_LUT_STEPS + 1, dtype=dtype) * step
    samples, middles = (function(v) * 2.0**15 for v in (places, places[:-1] + step / 2))
    here, following = _nearest(samples), samples[1:]
    straight = _nearest((following + here[:-1]) / 2)
    bias = _nearest((straight - _nearest(middles)) / 2)
    shifted = torch.cat([here[:-1] - bias, here[-1:]])
    return shifted.to(torch.int64).clamp(INT16.qmin, INT16.qmax)


def _nearest(x: Tensor) -> Tensor:
    """Round halves away from zero, and keep the dtype."""
    return round_half_away_tensor(x).to(x.dtype)


def _interpolate(position: Tensor, lut: Tensor) -> Tensor:
    """Return the value at an int16 position: 512 cells of 128 steps."""
    cell = 256 + (position >> 7)
    base = lut[cell]
    delta = ((lut[cell + 1] - base) * (position & 0x7F) + 64) >> 7
    return base + delta
