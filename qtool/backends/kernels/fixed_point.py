"""The fixed-point core: integer multiplication by a real factor, as gemmlowp and TFLite do it.

Numbers live in int64 tensors that hold int32 values, so that a product of two never overflows;
where the runtime's int32 wraps, `wrap32` wraps. A real factor m is kept as a `Multiplier`:
m = mantissa * 2**(exponent - 31).

Source: tflite/kernels/internal/quantization_util.cc (QuantizeMultiplier), .../internal/common.cc
(MultiplyByQuantizedMultiplier, the double-rounding build), gemmlowp fixedpoint/fixedpoint.h.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from qtool.core.errors import KernelError

INT32_MAX = 2**31 - 1
MAX_LEFT_SHIFT = 31  # the runtime shifts an int32 one; a larger shift is undefined there


class Multiplier(NamedTuple):
    """mantissa * 2**(exponent - 31); int64 tensors, one value or one per channel."""

    mantissa: Tensor
    exponent: Tensor


def quantize_multiplier(real: float) -> Multiplier:
    """The nearest 31-bit multiplier of a non-negative double; below 2**-32 it becomes 0.

    Raises KernelError where the factor needs a left shift the runtime cannot do.
    """
    mantissa, exponent = 0, 0
    if real != 0.0:
        fraction, exponent = math.frexp(real)
        mantissa = math.floor(fraction * 2**31 + 0.5)  # exact: 22 spare bits, and fraction > 0
        if mantissa == 2**31:
            mantissa, exponent = 2**30, exponent + 1
        if exponent < -31:
            mantissa, exponent = 0, 0
    if exponent > MAX_LEFT_SHIFT:
        raise KernelError(
            f"the scales ask for a factor of {real:.3g}, more than the runtime can shift (2**31); "
            "bring input and output scales closer together"
        )
    return Multiplier(torch.tensor(mantissa), torch.tensor(exponent))


def channel_multipliers(reals: Iterable[float], shape: tuple[int, ...]) -> Multiplier:
    """One multiplier per channel, shaped to broadcast against the accumulators."""
    parts = [quantize_multiplier(real) for real in reals]
    return Multiplier(
        torch.stack([p.mantissa for p in parts]).reshape(shape),
        torch.stack([p.exponent for p in parts]).reshape(shape),
    )


def wrap32(x: Tensor) -> Tensor:
    """int64 -> the value an int32 register would hold, still int64."""
    return x.to(torch.int32).to(torch.int64)


def wrap16(x: Tensor) -> Tensor:
    """int64 -> the value an int16 register would hold, still int64."""
    return x.to(torch.int16).to(torch.int64)


def saturating_rounding_doubling_high_mul(a: Tensor, b: Tensor) -> Tensor:
    """(a * b) / 2**31 to nearest, ties toward +infinity; only min * min saturates."""
    return ((a * b + (1 << 30)) >> 31).clamp(max=INT32_MAX)


def rounding_divide_by_pot(x: Tensor, exponent: Tensor | int) -> Tensor:
    """x / 2**exponent to nearest, ties away from zero; 0 <= exponent <= 31."""
    n = torch.as_tensor(exponent)
    mask = (torch.ones_like(n) << n) - 1
    threshold = (mask >> 1) + (x < 0).to(torch.int64)
    return (x >> n) + ((x & mask) > threshold).to(torch.int64)


def saturating_left_shift(x: Tensor, bits: int, width: int = 32) -> Tensor:
    """x * 2**bits, clamped to a signed integer of `width` bits."""
    limit = 1 << (width - 1)
    return (x << bits).clamp(-limit, limit - 1)


def rounding_shift_right(x: Tensor, exponent: Tensor | int) -> Tensor:
    """x / 2**exponent to nearest, ties toward +infinity, as SIMD instructions round."""
    n = torch.as_tensor(exponent)
    return (x + ((torch.ones_like(n) << n) >> 1)) >> n


def multiply_by_quantized_multiplier(x: Tensor, by: Multiplier) -> Tensor:
    """x * factor for int32 x, rounded twice: in the high multiply, then in the right shift.

    The left shift before them wraps like the runtime's int32.
    """
    shifted = wrap32(x << by.exponent.clamp(min=0))
    high = saturating_rounding_doubling_high_mul(shifted, by.mantissa)
    return rounding_divide_by_pot(high, (-by.exponent).clamp(min=0))


def multiply_wide(x: Tensor, by: Multiplier) -> Tensor:
    """x * factor for 48-bit x (int64 accumulators): 15-bit mantissa, one rounding, ties up."""
    reduced = torch.where(by.mantissa < 0x7FFF0000, (by.mantissa + (1 << 15)) >> 16, 0x7FFF)
    shift = 15 - by.exponent
    half = torch.ones_like(shift) << (shift - 1)
    return wrap32((x * reduced + half) >> shift)


def divide_half_away(x: Tensor, by: Tensor | int) -> Tensor:
    """x / by to nearest for integers, by > 0, ties away from zero (C: (x +- by/2) / by)."""
    n = torch.as_tensor(by)
    half = torch.div(n, 2, rounding_mode="floor")
    return torch.div(torch.where(x > 0, x + half, x - half), n, rounding_mode="trunc")
