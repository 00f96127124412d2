"""LOGISTIC and TANH of TensorFlow Lite Micro on int8: fixed point, where LiteRT has tables.

Inputs are Q4.27 numbers. Beyond a radius, a whole number of input steps that is at most 15, the
result is the first or the last code. Source: tflite-micro
tensorflow/lite/kernels/internal/reference/integer_ops/logistic.h, tanh.h; micro/kernels/tanh.cc,
logistic_common.cc; gemmlowp fixedpoint/fixedpoint.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from qtool.backends.kernels import fixed_point as fp
from qtool.backends.kernels.codes import all_codes, lookup
from qtool.backends.kernels.params import Kernel, per_tensor
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import CallEdit
from qtool.core.types import INT8
from qtool.plugins.tflite.kernels import lookup_tables
from qtool.plugins.tflite.kernels.softmax import (
    exp_on_negative,
    half_of_one_plus,
    newton_reciprocal,
)

LEAST_SCALE = 2.0**-28
"""Of the input; below, the runtime shifts by a negative number of bits."""
_NO_RADIUS = 8.0
"""Scale of the input from which every code is beyond the radius of 0."""
_INTEGER_BITS = 4
_FRACTION = 31 - _INTEGER_BITS
_ONE = 2**31 - 1


def logistic(x: QuantParams, out: QuantParams) -> Kernel:
    """Return 1 / (1 + exp(-x)) on codes; int16 as LiteRT.

    Raises:
        KernelError: other output parameters than scale 1/256 and zero point -128, or an input
            scale below 2**-28.
    """
    if x.qtype != INT8:
        return lookup_tables.logistic(x, out)
    _check(out, 1 / 256, -128)
    return _table(x, lambda v: fp.rounding_divide_by_pot(_logistic(v), 31 - 8) - 128)


def tanh(x: QuantParams, out: QuantParams) -> Kernel:
    """Return the hyperbolic tangent on codes; int16 as LiteRT.

    Raises:
        KernelError: other output parameters than scale 1/128 and zero point 0, or an input scale
            below 2**-28.
    """
    if x.qtype != INT8:
        return lookup_tables.tanh(x, out)
    _check(out, 1 / 128, 0)
    return _table(x, lambda v: fp.rounding_divide_by_pot(_tanh(v), 31 - 7))


def _check(out: QuantParams, scale: float, zero: int) -> None:
    actual = per_tensor(out, "output")
    if actual != (scale, zero):
        raise KernelError(
            f"the output needs scale {scale} and zero point {zero}, not {actual[0]:.6g} and "
            f"{actual[1]}",
            CallEdit("fix the output's parameters"),
        )


def _table(x: QuantParams, function: Callable[[Tensor], Tensor]) -> Kernel:
    """Return a lookup in the results of a function: Q4.27 numbers -> int64 codes."""
    scale, zero = per_tensor(x, "input")
    if scale < LEAST_SCALE:
        raise KernelError(
            f"the input scale {scale:.3g} is below 2**-28", CallEdit("use a larger one")
        )
    by = fp.quantize_multiplier(min(scale, _NO_RADIUS) * 2.0**_FRACTION)
    radius = math.floor((2**_INTEGER_BITS - 1) * 2.0**_FRACTION / 2.0 ** int(by.exponent))
    centred = all_codes(x).to(torch.int64) - zero
    inner = centred.clamp(1 - radius, max(radius - 1, 1 - radius))
    codes = function(fp.multiply_by_quantized_multiplier(inner, by)).clamp(-128, 127)
    codes = torch.where(centred >= radius, 127, codes)
    codes = torch.where(centred <= -radius, -128, codes)
    return lookup(codes.to(torch.int8), x.qtype)


def _logistic(x: Tensor) -> Tensor:
    """Return the logistic of Q4.27 numbers in Q0.31."""
    half = half_of_one_plus(exp_on_negative(-x.abs(), _FRACTION))
    positive = fp.saturating_left_shift(newton_reciprocal(half), 1)  # of Q1.30
    result = torch.where(x > 0, positive, _ONE - positive)
    return torch.where(x == 0, 1 << 30, result)


def _tanh(x: Tensor) -> Tensor:
    """Return tanh of Q4.27 numbers in Q0.31: (1 - e) / (1 + e) with e = exp(-2|x|), signed."""
    half = half_of_one_plus(exp_on_negative(-x.abs(), _FRACTION - 1))  # twice the number
    magnitude = fp.saturating_left_shift(newton_reciprocal(half) - (1 << 29), 2)  # of Q2.29
    return torch.where(x == 0, 0, torch.where(x < 0, -magnitude, magnitude))
