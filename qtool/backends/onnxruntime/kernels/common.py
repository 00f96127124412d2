"""Operations that the kernels of ONNX Runtime share: float32 in, codes out."""

from __future__ import annotations

import torch
from torch import Tensor

from qtool.backends.kernels.codes import all_codes, lookup
from qtool.backends.kernels.params import Kernel, channel_scales, per_tensor
from qtool.backends.kernels.products import ToCodes
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams, torch_dtype
from qtool.core.types import Bounds


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


# How ONNX Runtime scales the sums of QLinearConv, QGemm and QLinearMatMul.
#
# Integer accumulators, one float32 product per output: rint(f32(f32(acc) * m)) + zero point with
# m = f32(f32(sx * sw) / sy). uint8 or int8 activations, uint8 or int8 weights, per tensor or per
# output channel, any zero points.
#
# Sources: onnxruntime/core/providers/cpu/quantization/qlinearconv.cc, quantize_linear_matmul.cc;
# onnxruntime/contrib_ops/cpu/quantization/quant_gemm.cc; onnxruntime/core/mlas/lib/quantize.cpp
# (MlasRequantizeOutput), convsym.cpp. CPUs that accumulate uint8 x int8 pairs in saturating 16 bits
# (no VNNI) differ.


def scale_sums(
    x: QuantParams,
    w: QuantParams,
    out: QuantParams | None,
    channels: int,
    rank: int,
    bounds: Bounds,
) -> ToCodes:
    """Bind rint(f32(f32(sum) * scale)) + zero point, saturated; see `products.Scale`.

    Without `out` (QGemm without y_scale) the result is f32(f32(sum) * f32(sx * sw)) in float32.
    Bounds are those that saturation implies, or the runtime does not fuse the activation.
    """
    for params, what in ((x, "input"), (w, "weight"), (out, "output")):
        if params is not None:
            check_byte(params, what)
    products = scalar32(x, "input")[0] * torch.tensor(
        channel_scales(w, channels), dtype=torch.float32
    )
    factors = products if out is None else products / scalar32(out, "output")[0]
    factors = factors.reshape(-1, *[1] * rank)

    def scaled(sums: Tensor) -> Tensor:
        # A product of two vectors has no dimension, and one factor.
        return sums.to(torch.float32).mul_(factors if sums.dim() else factors.squeeze())

    if out is None:
        return scaled
    zero = scalar32(out, "output")[1]

    def to_codes(sums: Tensor) -> Tensor:
        rounded = scaled(sums).round_()
        return saturate(rounded.add_(zero) if zero else rounded, out)

    return to_codes


# ONNX Runtime QuantizeLinear, DequantizeLinear, and the pair of them (requantize).
#
# Source: onnxruntime/core/mlas/lib/quantize.cpp, intrinsics/avx512/quantize_avx512f.cpp.


def quantize(out: QuantParams) -> Kernel:
    """Return the kernel: float32 -> uint8 or int8 codes, rint(f32(x / scale)) + zero point."""
    check_byte(out, "output")
    per_tensor(out, "output")
    return lambda x: to_codes(x, out)


def requantize(x: QuantParams, out: QuantParams) -> Kernel:
    """Return the kernel of DequantizeLinear, then QuantizeLinear, as a table of 256 codes."""
    check_byte(x, "input")
    check_byte(out, "output")
    return lookup(to_codes(to_float(all_codes(x), x), out), x.qtype)


def dequantize(x: QuantParams) -> Kernel:
    """Return the kernel: codes -> float32, f32(code - zero_point) * scale."""
    check_byte(x, "input")
    per_tensor(x, "input")
    return lambda codes: to_float(codes, x)
