"""TFLite AVERAGE_POOL_2D, MAX_POOL_2D and MEAN, reference kernels.

Sources: tflite/kernels/internal/reference/integer_ops/pooling.h, reference/pooling.h,
reference/reduce.h; tflite/kernels/reduce.cc.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qtool.backends.kernels import fixed_point as fp
from qtool.backends.kernels.params import NO_BOUNDS, Kernel, spatial
from qtool.backends.kernels.windows import pad_spatial, window_counts, window_sum, window_taps
from qtool.core.quant_params import QuantParams
from qtool.core.types import Bounds
from qtool.plugins.tflite.kernels.bounds import code_bounds, finish, in_and_out


def average_pool(
    x: QuantParams,
    out: QuantParams,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: int | Sequence[int] = 0,
    bounds: Bounds = NO_BOUNDS,
    count_include_pad: bool = False,
) -> Kernel:
    """Return the mean of the elements inside the image, halves away from zero.

    The codes are averaged; the operator ignores both tensors' parameters (they should be equal).

    Args:
        x: parameters of the input [N, C, *spatial].
        out: parameters of the output, of the same type.
        kernel: one size per spatial dimension.
        stride: one per spatial dimension.
        pads: one number, or all begins, then all ends.
        bounds: real bounds of the fused activation.
        count_include_pad: the padding is written as a PAD with the zero point in front, since
            the operator itself averages only elements inside the image.

    Raises:
        KernelError: types differ.
    """
    in_and_out(x, out)  # of one type
    limits = code_bounds(out, bounds)
    edges = spatial(pads, 2 * len(kernel), "pads")
    before = edges if count_include_pad else (0,) * len(edges)
    inside = (0,) * len(edges) if count_include_pad else edges
    zero = int(x.zero_point) if count_include_pad else 0

    def run(codes: Tensor) -> Tensor:
        image = pad_spatial(codes.to(torch.float64), before, zero)
        padded = pad_spatial(image, inside)
        sums = window_sum(padded, kernel, stride).to(torch.int64)
        counts = window_counts(image.shape[2:], kernel, stride, inside)
        return finish(fp.divide_half_away(sums, counts), out, limits)

    return run


def max_pool(
    x: QuantParams,
    out: QuantParams,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: int | Sequence[int] = 0,
    bounds: Bounds = NO_BOUNDS,
) -> Kernel:
    """Return the largest code of each window of [N, C, *spatial]; arguments as `average_pool`.

    The operator ignores both tensors' parameters.
    """
    in_and_out(x, out)  # of one type
    limits = code_bounds(out, bounds)
    edges = spatial(pads, 2 * len(kernel), "pads")
    ones = (1,) * len(kernel)

    def run(codes: Tensor) -> Tensor:
        padded = pad_spatial(codes.to(torch.int64), edges, x.qtype.qmin)
        best = torch.stack(window_taps(padded, kernel, stride, ones)).amax(0)
        return finish(best, out, limits)

    return run


def mean(
    x: QuantParams, out: QuantParams, *, axes: Sequence[int], keep_dims: bool = True
) -> Kernel:
    """Return the mean over `axes`, rescaled to `out`.

    1/n is folded into the multiplier: with k = floor(log2 n), capped against overflow,
    mantissa = floor(mantissa * 2**k / n), and the exponent decreases by k.
    """
    scale_in, zero_in, scale_out, zero_out = in_and_out(x, out)
    base = fp.quantize_multiplier(scale_in / scale_out)
    limits = (out.qtype.qmin, out.qtype.qmax)

    def run(codes: Tensor) -> Tensor:
        n = math.prod(codes.shape[axis] for axis in axes)
        k = min(n.bit_length() - 1, 32, 31 + int(base.exponent))
        by = fp.Multiplier(((base.mantissa << k) // n), base.exponent - k)
        sums = codes.to(torch.int64).sum(tuple(axes), keepdim=keep_dims) - n * zero_in
        scaled = fp.multiply_by_quantized_multiplier(fp.wrap32(sums), by)
        return finish(scaled + zero_out, out, limits)

    return run


def global_average_pool(
    x: QuantParams, out: QuantParams, mean_over: Callable[..., Kernel] = mean
) -> Kernel:
    """Return MEAN over all spatial axes: [N, C, *spatial] -> [N, C, 1, ...]."""
    mean_over(x, out, axes=())  # errors now
    return lambda codes: mean_over(x, out, axes=range(2, codes.dim()))(codes)
