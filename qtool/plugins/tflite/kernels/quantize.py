"""TFLite QUANTIZE (from float and between integer types) and DEQUANTIZE, reference kernels.

Sources: tflite/kernels/quantize.cc, dequantize.cc; tflite/kernels/internal/reference/quantize.h,
requantize.h, dequantize.h.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qtool.backends.kernels import fixed_point as fp
from qtool.backends.kernels.params import Kernel, per_tensor
from qtool.core.quant_params import QuantParams, torch_dtype


def round_half_away_tensor(x: Tensor) -> Tensor:
    """Round a float32 tensor like C's round(), as float64 (where adding 0.5 is exact)."""
    wide = x.to(torch.float64)
    return torch.copysign(torch.floor(wide.abs() + 0.5), wide)


def quantize(out: QuantParams) -> Kernel:
    """Return the kernel: float32 -> codes, round(f32(x / scale)) + zero_point, saturated.

    Halves round away from zero.
    """
    scale, zero = per_tensor(out, "output")
    divisor = torch.tensor(scale, dtype=torch.float32)
    qtype = out.qtype

    def kernel(x: Tensor) -> Tensor:
        codes = round_half_away_tensor(x.to(torch.float32) / divisor) + zero
        return codes.clamp(qtype.qmin, qtype.qmax).to(torch_dtype(qtype))

    return kernel


def requantize(x: QuantParams, out: QuantParams) -> Kernel:
    """Return the integer kernel: codes -> codes of other parameters, int8, uint8 or int16.

    As in the runtime, there is no left shift before the first rounding, in which ratios below 1/2
    lose precision.
    """
    scale_in, zero_in = per_tensor(x, "input")
    scale_out, zero_out = per_tensor(out, "output")
    by = fp.quantize_multiplier(scale_in / scale_out)
    qtype = out.qtype

    def kernel(codes: Tensor) -> Tensor:
        scaled = fp.multiply_by_quantized_multiplier(codes.to(torch.int64) - zero_in, by)
        return (scaled + zero_out).clamp(qtype.qmin, qtype.qmax).to(torch_dtype(qtype))

    return kernel


def dequantize(x: QuantParams) -> Kernel:
    """Return the kernel: codes -> float32, f32(scale * (code - zero_point)), one rounding."""
    scale, zero = per_tensor(x, "input")

    def kernel(codes: Tensor) -> Tensor:
        return (codes.to(torch.int64) - zero).to(torch.float32) * scale

    return kernel
