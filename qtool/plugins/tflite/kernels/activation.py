"""TFLite RELU family, LEAKY_RELU, PRELU and HARD_SWISH, reference kernels.

Sources: tflite/kernels/activations.cc; tflite/kernels/internal/reference/reference_ops.h
(ReluX), leaky_relu.h, prelu.h, hard_swish.h.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qtool.backends.kernels import fixed_point as fp
from qtool.backends.kernels.params import (
    RELU,
    RELU6,
    RELU_N1_TO_1,
    Kernel,
    f32,
    is_int16,
    per_tensor,
)
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import CallEdit
from qtool.core.types import INT16, Bounds
from qtool.plugins.tflite.kernels.bounds import finish, in_and_out, quantize_real

_RELU_0_TO_1: Bounds = (0.0, 1.0)


def relu(x: QuantParams, out: QuantParams, *, bounds: Bounds = RELU) -> Kernel:
    """Return the kernel that rescales to `out`, then clamps to bounds.

    Args:
        x: per-tensor parameters of the input, uint8, int8 or int16.
        out: per-tensor parameters of the output, of the same type.
        bounds: real (0, inf), (0, 6), (-1, 1) or (0, 1).

    Raises:
        KernelError: other bounds, for which there is no operator.
    """
    if bounds not in (RELU, RELU6, RELU_N1_TO_1, _RELU_0_TO_1):
        raise KernelError(
            f"TFLite has no RELU operator with bounds {bounds}", CallEdit("leave it in float")
        )
    scale_in, zero_in, scale_out, zero_out = _pair(x, out)
    by = fp.quantize_multiplier(f32(scale_in / scale_out))
    low, high = bounds
    limits = (
        out.qtype.qmin if low is None else max(out.qtype.qmin, quantize_real(low, out)),
        out.qtype.qmax if high is None else min(out.qtype.qmax, quantize_real(high, out)),
    )

    def kernel(codes: Tensor) -> Tensor:
        scaled = fp.multiply_by_quantized_multiplier(codes.to(torch.int64) - zero_in, by)
        return finish(scaled + zero_out, out, limits)

    return kernel


def leaky_relu(
    x: QuantParams, out: QuantParams, *, alpha: float, in_float64: bool = False
) -> Kernel:
    """Return the kernel that rescales x >= 0 and x < 0 with different factors.

    Both factors are float32, or float64: scale in / scale out, scale in * alpha / scale out.

    Raises:
        KernelError: a negative slope.
    """
    if alpha < 0:
        raise KernelError(f"LEAKY_RELU with the negative slope {alpha} has no integer form")
    return _sloped(x, out, f32(alpha), None, float if in_float64 else f32)


def prelu(x: QuantParams, slope: QuantParams, out: QuantParams, slopes: Tensor) -> Kernel:
    """Return the kernel that rescales x >= 0 and multiplies x < 0 by its slope.

    Args:
        x: per-tensor parameters of the input.
        slope: per-tensor parameters of the slopes.
        out: per-tensor parameters of the output.
        slopes: codes, broadcast against x.
    """
    scale_slope, zero_slope = per_tensor(slope, "slope")
    return _sloped(x, out, scale_slope, slopes.to(torch.int64) - zero_slope)


def _sloped(
    x: QuantParams,
    out: QuantParams,
    slope: float,
    codes_of_slopes: Tensor | None,
    precision: Callable[[float], float] = f32,
) -> Kernel:
    """Return the kernel of x < 0 times slopes of a scale, or times one slope."""
    scale_in, zero_in, scale_out, zero_out = _pair(x, out)
    identity = fp.quantize_multiplier(precision(scale_in / scale_out))
    sloped = fp.quantize_multiplier(precision(precision(scale_in * slope) / scale_out))
    limits = (out.qtype.qmin, out.qtype.qmax)

    def kernel(codes: Tensor) -> Tensor:
        centred = codes.to(torch.int64) - zero_in
        product = centred if codes_of_slopes is None else fp.wrap32(centred * codes_of_slopes)
        above = fp.multiply_by_quantized_multiplier(centred, identity)
        below = fp.multiply_by_quantized_multiplier(product, sloped)
        return finish(torch.where(centred >= 0, above, below) + zero_out, out, limits)

    return kernel


def hard_swish(x: QuantParams, out: QuantParams) -> Kernel:
    """Return x * relu6(x + 3) / 6 in 16-bit fixed point, int8 or uint8.

    The input is widened by 7 bits; one factor rescales it to the output, another to 3 / 2**15,
    where saturation is the relu6.

    Raises:
        KernelError: scale in / 128 / scale out reaches 1.
    """
    scale_in, zero_in, scale_out, zero_out = _pair(x, out)
    fine = f32(scale_in / 128)
    by_out = fp.quantize_multiplier(f32(fine / scale_out))
    by_relu = fp.quantize_multiplier(f32(fine / f32(3 / 32768)))
    out_shift, relu_shift = int(by_out.exponent), int(by_relu.exponent)
    if out_shift > 0:
        raise KernelError(
            "HARD_SWISH needs an input scale below 128 times the output's "
            f"({scale_in:.3g} to {scale_out:.3g})",
            CallEdit("use a larger output scale"),
        )
    out_mantissa, relu_mantissa = _narrow(by_out), _narrow(by_relu)
    limits = (out.qtype.qmin, out.qtype.qmax)

    def kernel(codes: Tensor) -> Tensor:
        wide = (codes.to(torch.int64) - zero_in) << 7
        scaled = _high_mul16(wide, out_mantissa)
        gate = fp.saturating_left_shift(wide, max(relu_shift - 1, 0), 16)
        gate = _high_mul16(gate, relu_mantissa)
        gate = fp.saturating_left_shift(gate, min(max(relu_shift, 0), 1), 16)
        gate = fp.rounding_divide_by_pot(gate, max(-relu_shift, 0))
        gate = (gate + (1 << 15)) >> 1
        product = torch.div(gate * scaled, 1 << 15, rounding_mode="trunc")
        result = fp.rounding_divide_by_pot(product, -out_shift)
        return finish(fp.wrap16(result + zero_out), out, limits)  # added in 16 bits

    return kernel


def _high_mul16(a: Tensor, b: Tensor) -> Tensor:
    """Return the 16-bit doubling high product, ties toward +infinity."""
    return ((a * b + (1 << 14)) >> 15).clamp(max=INT16.qmax)


def _narrow(by: fp.Multiplier) -> Tensor:
    """Return the 31-bit mantissa rounded to 15 bits."""
    wide = int(by.mantissa)
    return torch.tensor(0x7FFF if wide >= 0x7FFF0000 else (wide + (1 << 15)) >> 16)


def _pair(x: QuantParams, out: QuantParams) -> tuple[float, int, float, int]:
    """Return scale and zero point of input and output."""
    scale_in, zero_in, scale_out, zero_out = in_and_out(x, out)
    if is_int16(x.qtype) and (zero_in or zero_out):
        raise KernelError("int16 tensors need zero points of 0", CallEdit("quantize symmetrically"))
    return scale_in, zero_in, scale_out, zero_out
