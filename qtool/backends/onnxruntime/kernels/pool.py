"""ONNX Runtime QLinearAveragePool, QLinearGlobalAveragePool and MaxPool on codes.

Sources: onnxruntime/contrib_ops/cpu/quantization/qlinear_pool.cc,
qlinear_global_average_pool.cc; onnxruntime/core/mlas/lib/qlgavgpool.cpp;
onnxruntime/core/providers/cpu/nn/pool.cc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qtool.backends.kernels.params import Kernel, same_params, spatial
from qtool.backends.kernels.windows import extend_pads, pad_spatial, window_counts, window_taps
from qtool.backends.onnxruntime.kernels.common import (
    check_byte,
    saturate,
    scalar32,
    to_float,
)
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.spatial_functions import MAX_POOL


def average_pool(
    x: QuantParams,
    out: QuantParams,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: int | Sequence[int] = 0,
    count_include_pad: bool = False,
) -> Kernel:
    """Return the mean of each window, in float32 like the runtime.

    Values are summed in window order and divided by the number of elements;
    rint(f32(f32(mean / sy) + zy)) is saturated. The runtime computes a window as large as the
    image, without pads, as a global average pool.

    Args:
        x: per-tensor parameters of the input [N, C, *spatial], uint8 or int8.
        out: per-tensor parameters of the output, uint8 or int8.
        kernel: one size per spatial dimension.
        stride: one per spatial dimension.
        pads: one number, or all begins, then all ends.
        count_include_pad: divide by the size of the window.
    """
    _check(x, out)
    scale, zero = scalar32(out, "output")
    edges = spatial(pads, 2 * len(kernel), "pads")
    ones = (1,) * len(kernel)
    whole = global_average_pool(x, out)

    def run(codes: Tensor) -> Tensor:
        if tuple(codes.shape[2:]) == tuple(kernel) and not any(edges):
            return whole(codes)
        wide = extend_pads(codes.shape[2:], kernel, stride, edges)
        padded = pad_spatial(to_float(codes, x), wide)
        taps = window_taps(padded, kernel, stride, ones)
        total = taps[0].clone()
        for tap in taps[1:]:
            total += tap
        if count_include_pad:
            total /= math.prod(kernel)
        else:
            total /= window_counts(codes.shape[2:], kernel, stride, wide).to(torch.float32)
        return saturate((total / scale).add_(zero).round_(), out)

    return run


def global_average_pool(x: QuantParams, out: QuantParams) -> Kernel:
    """Return the kernel: codes [N, C, *spatial] -> codes [N, C, 1, ...], with integer sums.

    rint(f32(sum(code - zero point)) * f32(sx / f32(sy * n))) + zero point. As in the runtime, the
    kernel raises KernelError for sizes with that factor not in [2**-32, 256) or n not below 2**24.
    """
    _check(x, out)
    scale_x, zero_x = scalar32(x, "input")
    scale, zero = scalar32(out, "output")

    def run(codes: Tensor) -> Tensor:
        axes = tuple(range(2, codes.dim()))
        n = math.prod(codes.shape[2:])
        factor = scale_x / (scale * float(n))
        if not 2.0**-32 <= float(factor) < 256.0 or n >= 1 << 24:
            raise KernelError(
                f"global average pool over {n} elements needs the factor {float(factor):.3g}, and "
                "the runtime takes [2**-32, 256); bring input and output scales closer together"
            )
        sums = codes.sum(axes, keepdim=True, dtype=torch.int64) - zero_x * n
        return saturate((sums.to(torch.float32) * factor).round_().add_(zero), out)

    return run


def max_pool(
    x: QuantParams,
    out: QuantParams,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
) -> Kernel:
    """Return the largest code of each window; arguments as `average_pool`.

    Args:
        dilation: one number, or one per spatial dimension.

    Raises:
        KernelError: input and output have different parameters.
    """
    _check(x, out)
    if not same_params(x, out):
        raise KernelError(
            "MaxPool keeps codes, so its output needs the input's parameters; share them"
        )
    rank = len(kernel)
    edges = spatial(pads, 2 * rank, "pads")
    dilations = spatial(dilation, rank, "dilation")

    def run(codes: Tensor) -> Tensor:
        # float32 holds the codes exactly and is the type torch has fast kernels for
        wide = extend_pads(codes.shape[2:], kernel, stride, edges, dilations)
        padded = pad_spatial(codes.to(torch.float32), wide, x.qtype.qmin)
        best = MAX_POOL[rank](padded, tuple(kernel), tuple(stride), 0, dilations)
        return best.to(torch.int32).to(codes.dtype)

    return run


def _check(x: QuantParams, out: QuantParams) -> None:
    check_byte(x, "input")
    check_byte(out, "output")
