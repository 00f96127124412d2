"""Operations that the kernels of ONNX Runtime share: float32 in, codes out."""

from __future__ import annotations

import torch
from torch import Tensor

from qtool.backends.kernels.params import per_tensor
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams, torch_dtype


def scalar32(params: QuantParams, what: str) -> tuple[Tensor, int]:
    """Scale as a rank-0 float32 tensor, so that torch computes in float32, and zero point."""
    scale, zero = per_tensor(params, what)
    return torch.tensor(scale, dtype=torch.float32), zero


def check_byte(params: QuantParams, what: str) -> None:
    """Raise KernelError for types without integer kernel (16 bits run in float)."""
    if torch_dtype(params.qtype) not in (torch.uint8, torch.int8):
        raise KernelError(
            f"{what} is {params.qtype}; ONNX Runtime has integer kernels for uint8 and int8 only"
        )


def saturate(x: Tensor, params: QuantParams) -> Tensor:
    """Integer-valued float32, changed in place -> codes.

    By way of int32: torch converts float to uint8 element by element, both other steps vectorised.
    """
    clamped = x.clamp_(params.qtype.qmin, params.qtype.qmax)
    return clamped.to(torch.int32).to(torch_dtype(params.qtype))


def to_codes(x: Tensor, params: QuantParams) -> Tensor:
    """QuantizeLinear: clamp(rint(f32(x / scale)) + zero_point), halves to even."""
    scale, zero = scalar32(params, "output")
    codes = (x / scale).round_()
    return saturate(codes.add_(zero) if zero else codes, params)


def to_float(codes: Tensor, params: QuantParams) -> Tensor:
    """DequantizeLinear: f32(code - zero_point) * scale."""
    scale, zero = scalar32(params, "input")
    values = codes.to(torch.float32)
    return (values.sub_(zero) if zero else values).mul_(scale)


def add_halves(sums: Tensor) -> Tensor:
    """Add the two halves of the first dimension, a power of two long, until one sum is left."""
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return sums[0]
