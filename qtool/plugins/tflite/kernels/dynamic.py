"""TFLite FULLY_CONNECTED on floats with int8 weights: each run quantizes each row of the input.

Rows have any zero point (`asymmetric_quantize_inputs`). On x86-64 a row is quantized in blocks of 8
elements, where a half is added in float32 and the sum cut off; the rest is rounded.

Source: tflite/kernels/fully_connected.cc (EvalHybrid);
tflite/kernels/internal/optimized/neon_tensor_utils.cc (NeonAsymmetricQuantizeFloats),
sse_tensor_utils.cc.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qtool.backends.kernels.params import Kernel, channel_scales
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8
from qtool.plugins.tflite.kernels.quantize import round_half_away_tensor

_BLOCK = 8  # elements


def dynamic_linear(w: QuantParams, weight: Tensor, bias: Tensor | None = None) -> Kernel:
    """Return the kernel: float32 [..., I] -> float32 [..., O].

    Args:
        w: parameters of the weight, int8 with zero point 0.
        weight: its codes [O, I].
        bias: float32 [O].
    """
    scales = torch.tensor(channel_scales(w, len(weight)), dtype=torch.float32)
    values, start = weight.to(torch.float64).t(), 0.0 if bias is None else bias

    def kernel(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        codes, scale, zero = _quantize_rows(rows)
        sums = (codes - zero).to(torch.float64) @ values  # integers, exact
        products = sums.to(torch.float32) * (scales * scale)
        return (start + products).reshape(*x.shape[:-1], len(weight))

    return kernel


def _quantize_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes [rows, in], scales and zero points [rows, 1], all float32.

    The zero point is computed from that end of the range where its rounding error is smaller.
    """
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    empty = low == high
    scale = torch.where(empty, 1.0, (high - low).to(torch.float64) / INT8.levels)
    ends = (INT8.qmin, low.to(torch.float64)), (INT8.qmax, high.to(torch.float64))
    (from_low, error_low), (from_high, error_high) = (
        (code - end / scale, abs(code) + (end / scale).abs()) for code, end in ends
    )
    zero = torch.where(error_low < error_high, from_low, from_high)
    zero = round_half_away_tensor(zero).clamp(INT8.qmin, INT8.qmax)
    zero = torch.where(empty, 0.0, zero).to(torch.float32)
    narrow = scale.to(torch.float32)
    scaled = x * (1.0 / narrow.to(torch.float64)).to(torch.float32)
    end = x.shape[1] // _BLOCK * _BLOCK
    rest = round_half_away_tensor(scaled[:, end:]).to(torch.float32)
    blocks = torch.trunc(
        scaled[:, :end] + torch.copysign(torch.tensor(0.5, dtype=torch.float32), scaled[:, :end])
    )
    rounded = torch.cat([blocks, rest], 1)
    return (rounded + zero).clamp(INT8.qmin, INT8.qmax), narrow, zero
