"""ONNX Runtime QLinearConv, QGemm and QLinearMatMul.

Integer accumulators, one float32 product per output: rint(f32(f32(acc) * m)) + zero point with
m = f32(f32(sx * sw) / sy). uint8 or int8 activations, uint8 or int8 weights, per tensor or per
output channel, any zero points.

Sources: onnxruntime/core/providers/cpu/quantization/qlinearconv.cc, quantize_linear_matmul.cc;
onnxruntime/contrib_ops/cpu/quantization/quant_gemm.cc; onnxruntime/core/mlas/lib/quantize.cpp
(MlasRequantizeOutput), convsym.cpp. CPUs that accumulate uint8 x int8 pairs in saturating 16 bits
(no VNNI) differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qtool.backends.kernels import accumulate
from qtool.backends.kernels.params import Kernel, channel_scales
from qtool.backends.onnxruntime.kernels.common import (
    check_byte,
    saturate,
    scalar32,
)
from qtool.core.types import QuantParams

SumsOf = Callable[..., accumulate.Accumulate]
"""Binds sums of products, with the arguments of `accumulate.conv_accumulator` and the like."""


def conv(
    x: QuantParams,
    w: QuantParams,
    out: QuantParams,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    sums_of: SumsOf = accumulate.conv_accumulator,
) -> Kernel:
    """Codes [N, I, *spatial] -> codes [N, O, *out], 1 to 3 spatial axes.

    `weight` codes [O, I / groups, *kernel], `bias` int32 codes [O] at scale sx * sw, `pads` all
    begins then all ends, `sums_of` binds the sums of products. KernelError for 16-bit types, and
    sums that could leave float64's exact range.
    """
    check_types(x, w, out)
    sums = sums_of(x, w, weight, bias, stride=stride, pads=pads, dilation=dilation, groups=groups)
    scales = factors(x, w, out, weight.shape[0]).reshape(-1, *[1] * (weight.dim() - 2))
    return _rescale_sums(sums, scales, out)


def linear(
    x: QuantParams,
    w: QuantParams,
    out: QuantParams | None,
    weight: Tensor,
    bias: Tensor | None = None,
    sums_of: SumsOf = accumulate.linear_accumulator,
) -> Kernel:
    """Codes [..., I], weight codes [O, I] -> codes [..., O], or float32 where `out` is None.

    With float output (QGemm without y_scale) the value is f32(acc) * f32(sx * sw), the int32
    bias inside acc.
    """
    check_types(x, w, out)
    sums = sums_of(x, w, weight, bias)
    return _rescale_sums(sums, factors(x, w, out, weight.shape[0]), out)


def matmul(
    a: QuantParams,
    b: QuantParams,
    out: QuantParams | None,
    sums_of: SumsOf = accumulate.matmul_accumulator,
) -> Kernel:
    """Two activations [..., M, K] @ [..., K, N] -> codes, or float32 where `out` is None."""
    check_types(a, b, out)
    return _rescale_sums(sums_of(a, b), factors(a, b, out, 1), out)


def check_types(x: QuantParams, w: QuantParams, out: QuantParams | None) -> None:
    """KernelError for types that have no integer kernel."""
    check_byte(x, "input")
    check_byte(w, "weight")
    if out is not None:
        check_byte(out, "output")


def factors(x: QuantParams, w: QuantParams, out: QuantParams | None, channels: int) -> Tensor:
    """f32(f32(sx * sw) / sy) per channel, or f32(sx * sw) for float output."""
    products = scalar32(x, "input")[0] * torch.tensor(channel_scales(w, channels))
    return products if out is None else products / scalar32(out, "output")[0]


def _rescale_sums(sums: accumulate.Accumulate, scales: Tensor, out: QuantParams | None) -> Kernel:
    """rint(f32(f32(sum) * scale)) + zero point, saturated; f32(f32(sum) * scale) without `out`."""
    if out is None:
        return lambda *codes: _scale(sums(*codes), scales)
    zero = scalar32(out, "output")[1]

    def kernel(*codes: Tensor) -> Tensor:
        scaled = _scale(sums(*codes), scales).round_()
        return saturate(scaled.add_(zero) if zero else scaled, out)

    return kernel


def _scale(sums: Tensor, scales: Tensor) -> Tensor:
    """A product of two vectors has no dimension, and one factor."""
    return sums.to(torch.float32).mul_(scales if sums.dim() else scales.squeeze())
