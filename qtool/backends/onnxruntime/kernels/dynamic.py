"""Products of inputs that are quantized at run time, as ONNX Runtime computes them.

The runtime fuses DynamicQuantizeLinear, MatMulInteger and the multiplication behind it to one
kernel. Its arithmetic is that of the parts: integers, then one float32 product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qtool.backends.kernels.accumulate import Accumulate, linear_accumulator
from qtool.backends.kernels.params import Kernel
from qtool.core.quant_params import QuantParams
from qtool.core.types import UINT8


def dynamic_quantize() -> Callable[..., Any]:
    """Bind DynamicQuantizeLinear: float32 -> uint8 codes, their scale and their zero point."""
    levels, zero = (
        torch.tensor(float(UINT8.levels), dtype=torch.float32),
        torch.zeros((), dtype=torch.float32),
    )

    def run(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        least, most = torch.aminmax(x) if x.numel() else (zero, zero)
        low, high = torch.minimum(least, zero), torch.maximum(most, zero)
        scale = torch.where(low == high, 1.0, (high - low) / levels)
        point = (-(low / scale)).clamp(0, UINT8.qmax).round()
        codes = ((x / scale).round() + point).clamp(0, UINT8.qmax)
        return codes.to(torch.uint8), scale, point.to(torch.uint8)

    return run


def matmul_integer(
    w: QuantParams, weight: Tensor, sums_of: Callable[..., Accumulate] = linear_accumulator
) -> Kernel:
    """Bind MatMulInteger: uint8 codes [..., in] and their zero point -> int32 [..., out].

    Args:
        w: parameters of the weight.
        weight: codes [out, in].
        sums_of: binds the sums of products, see `accumulate.linear_accumulator`.
    """
    one, zero = torch.ones((), dtype=torch.float32), torch.zeros((), dtype=torch.int64)
    sums = sums_of(QuantParams(UINT8, one, zero), w, weight, None)
    shifted = weight.to(torch.int64) - w.along(w.zero_point, weight.shape)
    columns = shifted.sum(1)

    def run(codes: Tensor, zero_point: Tensor | None = None) -> Tensor:
        total = sums(codes).to(torch.int64)
        if zero_point is not None:
            total = total - zero_point.to(torch.int64) * columns
        return total.to(torch.int32)

    return run


def dynamic_matmul(
    w: QuantParams,
    weight: Tensor,
    bias: Tensor | None = None,
    sums_of: Callable[..., Accumulate] = linear_accumulator,
) -> Kernel:
    """Bind a product of floats [..., in], rounded to uint8 by one range, and a weight.

    Args:
        w: parameters of the weight.
        weight: codes [out, in].
        bias: float32 [out].
        sums_of: as for `matmul_integer`.
    """
    quantize, product = dynamic_quantize(), matmul_integer(w, weight, sums_of)

    def run(x: Tensor) -> Tensor:
        codes, scale, zero_point = quantize(x)
        result: Tensor = product(codes, zero_point).to(torch.float32) * (scale * w.scale)
        return result if bias is None else result + bias

    return run
