"""TFLite ADD, SUB and MUL, reference kernels: integer arithmetic only.

Sources: tflite/kernels/add.cc, sub.cc, mul.cc; tflite/kernels/internal/reference/add.h, sub.h,
integer_ops/add.h, integer_ops/mul.h.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from qtool.backends.kernels import fixed_point as fp
from qtool.backends.kernels.params import NO_BOUNDS, Kernel, f32, is_int16, operands
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import CallEdit
from qtool.core.types import INT16, Bounds
from qtool.plugins.tflite.kernels.bounds import code_bounds, finish

_LEFT_SHIFT = {8: 20, 16: 15}  # bits of headroom before the codes are rescaled


def checked_log2(scale: float) -> int | None:
    """Return log2 of a power of two, None for other scales (float32, tolerance 1e-3)."""
    log2 = f32(f32(math.log(scale)) * f32(1.0 / f32(math.log(2.0))))
    nearest = math.floor(abs(log2) + 0.5) * (1 if log2 >= 0 else -1)
    return nearest if abs(f32(log2 - nearest)) < 1e-3 else None


def add(
    a: QuantParams,
    b: QuantParams,
    out: QuantParams,
    *,
    bounds: Bounds = NO_BOUNDS,
    pot_scale_int16: bool = True,
    sign: int = 1,
) -> Kernel:
    """Return the rescaled addition of two code tensors, which broadcast.

    Both operands are shifted left by 20 bits (15 for int16), scaled to twice the larger input
    scale, added, and the sum is scaled to the output.

    Args:
        a: per-tensor parameters of the first input, uint8, int8 or int16.
        b: per-tensor parameters of the second input.
        out: per-tensor parameters of the output.
        bounds: real bounds of the fused activation.
        pot_scale_int16: int16 tensors whose scales are all powers of two only shift and saturate;
            the schema's default.
        sign: sign of the second input; -1 for the subtraction.

    Raises:
        KernelError: max(scale a, scale b) / scale out reaches 2**19 (the runtime aborts), types
            differ, int16 zero points are not 0, or no int16 input has the output's power-of-two
            scale.
    """
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    limits = code_bounds(out, bounds)
    wide = is_int16(a.qtype)
    if wide:
        if zero_a or zero_b or zero:
            raise KernelError(
                "int16 ADD and SUB need zero points of 0", CallEdit("quantize symmetrically")
            )
        logs = [checked_log2(s) for s in (scale_a, scale_b, scale)]
        if pot_scale_int16 and None not in logs:
            return _sum_by_shifts([int(v or 0) for v in logs], out, limits, sign)
    left = _LEFT_SHIFT[16 if wide else 8]
    twice = 2 * max(scale_a, scale_b)
    real_out = twice / (2**left * scale)
    by_out = fp.quantize_multiplier(real_out)
    if real_out >= 1.0 or int(by_out.exponent) > 0:
        raise KernelError(
            f"the larger input scale is {max(scale_a, scale_b) / scale:.3g} times the output "
            f"scale; the runtime aborts from 2**{left - 1} on",
            CallEdit("use a larger output scale"),
        )
    by_a, by_b = fp.quantize_multiplier(scale_a / twice), fp.quantize_multiplier(scale_b / twice)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        x_wide = fp.multiply_by_quantized_multiplier((x.to(torch.int64) - zero_a) << left, by_a)
        y_wide = fp.multiply_by_quantized_multiplier((y.to(torch.int64) - zero_b) << left, by_b)
        total = fp.multiply_by_quantized_multiplier(x_wide + sign * y_wide, by_out)
        return finish(total + zero, out, limits)

    return kernel


sub = partial(add, sign=-1)
"""The rescaled subtraction a - b. Above a ratio of 2**19 the runtime returns unrelated codes; this
function raises."""


def _sum_by_shifts(logs: list[int], out: QuantParams, limits: tuple[int, int], sign: int) -> Kernel:
    """Return the int16 sum for power-of-two scales: rounds the finer input to the output's."""
    shift_a, shift_b = logs[2] - logs[0], logs[2] - logs[1]
    if min(shift_a, shift_b) < 0 or (shift_a and shift_b):
        raise KernelError(
            "int16 ADD and SUB with power-of-two scales need one input at the output's scale "
            "and the other no coarser",
            CallEdit("change a scale, or use pot_scale_int16=False"),
        )

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        x_wide = fp.rounding_divide_by_pot(x.to(torch.int64), shift_a)
        y_wide = fp.rounding_divide_by_pot(y.to(torch.int64), shift_b)
        total = (x_wide + sign * y_wide).clamp(INT16.qmin, INT16.qmax)
        return finish(total, out, limits)

    return kernel


def mul(
    a: QuantParams,
    b: QuantParams,
    out: QuantParams,
    *,
    bounds: Bounds = NO_BOUNDS,
    in_float64: bool = False,
) -> Kernel:
    """Return the product of two code tensors, which broadcast: uint8, int8 or int16.

    If the factor scale a * scale b / scale out exceeds 1, the int32 product may wrap when it is
    shifted, as in the runtime.

    Args:
        a: per-tensor parameters of the first input.
        b: per-tensor parameters of the second input.
        out: per-tensor parameters of the output.
        bounds: real bounds of the fused activation.
        in_float64: the factor is computed in float64 instead of float32.

    Raises:
        KernelError: types differ.
    """
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    limits = code_bounds(out, bounds)
    precision = float if in_float64 else f32
    by = fp.quantize_multiplier(precision(precision(scale_a * scale_b) / scale))

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        product = (x.to(torch.int64) - zero_a) * (y.to(torch.int64) - zero_b)
        scaled = fp.multiply_by_quantized_multiplier(fp.wrap32(product), by)
        return finish(scaled + zero, out, limits)

    return kernel
