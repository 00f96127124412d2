"""Fused activation bounds of a TFLite operator, in output codes."""

from __future__ import annotations

import math

from torch import Tensor

from qtool.backends.kernels.params import NO_BOUNDS, RELU, RELU6, RELU_N1_TO_1, f32, per_tensor
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams, torch_dtype
from qtool.core.remedies import CallEdit
from qtool.core.types import Bounds

_FUSABLE = (NO_BOUNDS, RELU, RELU6, RELU_N1_TO_1)


def round_half_away(x: float) -> int:
    """Round like C's round(): to nearest, halves away from zero."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x)) if math.isfinite(x) else 0


def quantize_real(value: float, out: QuantParams) -> int:
    """Return the code of a real bound: zero_point + round(f32(value / scale)), not clamped."""
    scale, zero = per_tensor(out, "output")
    quotient = f32(value / scale)
    if not -(2.0**31) <= quotient < 2.0**31:
        raise KernelError(
            f"the activation bound {value} over the output scale {scale:.3g} exceeds int32",
            CallEdit("use a larger output scale"),
        )
    return zero + round_half_away(quotient)


def code_bounds(out: QuantParams, bounds: Bounds) -> tuple[int, int]:
    """Return the lowest and highest output code of a fused activation.

    Source: tflite/kernels/kernel_util.cc, CalculateActivationRangeQuantizedImpl. The highest may
    be below the lowest; the kernels then return the highest.

    Raises:
        KernelError: bounds other than none, (0, inf), (0, 6) and (-1, 1).
    """
    if bounds not in _FUSABLE:
        raise KernelError(
            f"TFLite cannot fuse an activation with bounds {bounds}, only none, (0, inf), "
            "(0, 6) and (-1, 1)",
            CallEdit("keep the activation as a separate operator"),
        )
    low, high = bounds
    lowest, highest = out.qtype.qmin, out.qtype.qmax
    if low is not None:
        lowest = max(lowest, quantize_real(low, out))
    if high is not None:
        highest = min(highest, quantize_real(high, out))
    return lowest, highest


def in_and_out(x: QuantParams, out: QuantParams) -> tuple[float, int, float, int]:
    """Return scale and zero point of the input, then of the output.

    Raises:
        KernelError: they have two types, or one has a scale per channel.
    """
    if x.qtype.dtype != out.qtype.dtype:
        raise KernelError(f"input is {x.qtype} and output {out.qtype}", CallEdit("use one type"))
    return (*per_tensor(x, "input"), *per_tensor(out, "output"))


def finish(x: Tensor, out: QuantParams, limits: tuple[int, int]) -> Tensor:
    """Return min(highest, max(lowest, x)) as output codes, also if lowest > highest."""
    return x.clamp(min=limits[0]).clamp(max=limits[1]).to(torch_dtype(out.qtype))
