"""TFLite CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV, FULLY_CONNECTED and BATCH_MATMUL.

int8 activations and int8 weights with zero point 0, int32 accumulators, one multiplier per
output channel; or int16 activations (zero points 0), with int64 accumulators and the 15-bit
multiplication.

Tensors are channels-first here ([N, C, *spatial], weights [O, I / groups, *k]); layout does not
change integer arithmetic. 1-d and 3-d convolutions follow the same rule.

Sources: tflite/kernels/kernel_util.cc (PopulateConvolutionQuantizationParams,
GetQuantizedConvolutionMultipler), conv.cc, depthwise_conv.cc, transpose_conv.cc,
fully_connected.cc, batch_matmul.cc; tflite/kernels/internal/reference/integer_ops/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qtool.backends.kernels import accumulate
from qtool.backends.kernels import fixed_point as fp
from qtool.backends.kernels.params import (
    NO_BOUNDS,
    Kernel,
    channel_scales,
    f32,
    is_int16,
    per_tensor,
)
from qtool.backends.tflite.kernels.bounds import code_bounds, finish
from qtool.backends.tflite.kernels.quantize import round_half_away_tensor
from qtool.core.errors import KernelError
from qtool.core.types import INT8, Bounds, QuantParams

Multiply = Callable[[Tensor, fp.Multiplier], Tensor]
"""Accumulators [N, O, *out] and a multiplier per channel -> rounded products."""

Rescale = Callable[..., Kernel]
"""Sums, the parameters of input, weight and output, numbers of channels and of spatial axes, bounds
-> the kernel; see `rescale_sums`."""


def _check_int8(params: QuantParams) -> None:
    if params.qtype.torch_dtype != INT8.torch_dtype:
        raise KernelError(f"this TFLite kernel takes int8 here, not {params.qtype}")


def _is_wide(params: QuantParams, what: str) -> bool:
    """Return whether codes have 16 bits, then with the zero point 0."""
    wide = is_int16(params.qtype)
    if wide and per_tensor(params, what)[1]:
        raise KernelError("int16 tensors need zero points of 0; quantize symmetrically")
    return wide


def _check(x: QuantParams, w: QuantParams, out: QuantParams) -> None:
    _check_int8(w)
    if not (_is_wide(x, "input") and _is_wide(out, "output")):
        _check_int8(x)
        _check_int8(out)
    if bool(w.zero_point.any()):
        raise KernelError("TFLite needs int8 weights with zero point 0; quantize symmetrically")


def rescale_sums(
    sums: accumulate.Accumulate,
    x: QuantParams,
    w: QuantParams,
    out: QuantParams,
    channels: int,
    rank: int,
    bounds: Bounds,
    multiply: Multiply | None = None,
) -> Kernel:
    """Return the kernel that multiplies sums by scale x * scale w / scale out, per output channel.

    Args:
        sums: the accumulators.
        x: per-tensor parameters of the input, int8 or int16.
        w: parameters of the weight, int8 with zero point 0.
        out: per-tensor parameters of the output, of the input's type.
        channels: number of output channels.
        rank: number of axes behind that of the channels.
        bounds: real bounds of the fused activation.
        multiply: multiplies sums of 32 bits; by default as the reference kernels.

    Raises:
        KernelError: other types, or weight zero points other than 0.
    """
    _check(x, w, out)
    scale_x, scale_out = per_tensor(x, "input")[0], per_tensor(out, "output")[0]
    reals = [scale_x * s / scale_out for s in channel_scales(w, channels)]
    by = fp.channel_multipliers(reals, (channels, *[1] * rank))
    return _multiply_sums(sums, by, out, bounds, multiply)


def _multiply_sums(
    sums: accumulate.Accumulate,
    by: fp.Multiplier,
    out: QuantParams,
    bounds: Bounds,
    multiply: Multiply | None = None,
) -> Kernel:
    """Return the kernel that multiplies sums, adds the zero point, and clamps to the bounds."""
    zero, limits = per_tensor(out, "output")[1], code_bounds(out, bounds)
    wide = is_int16(out.qtype)
    scaled = fp.multiply_wide if wide else multiply or fp.multiply_by_quantized_multiplier

    def kernel(*codes: Tensor) -> Tensor:
        return finish(scaled(sums(*codes).to(torch.int64), by) + zero, out, limits)

    return kernel


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
    bounds: Bounds = NO_BOUNDS,
    rescale: Rescale = rescale_sums,
) -> Kernel:
    """Return the kernel: codes [N, I, *spatial] -> codes [N, O, *out].

    Args:
        x: per-tensor parameters of the input, int8 or int16.
        w: parameters of the weight, int8 with zero point 0, per tensor or per output channel.
        out: per-tensor parameters of the output, of the input's type.
        weight: int8 codes [O, I / groups, *kernel].
        bias: int32 codes [O] at scale x * w; None for zeros.
        stride: one number, or one per spatial dimension.
        pads: one number, or all begins, then all ends.
        dilation: one number, or one per spatial dimension.
        groups: I for a depthwise convolution.
        bounds: real bounds of the fused activation.
        rescale: scales the sums to output codes; by default as the reference kernels.

    Raises:
        KernelError: other types, weight zero points other than 0, or scale ratios that cannot be
            represented.
    """
    sums = accumulate.conv_accumulator(
        x, w, weight, bias, stride=stride, pads=pads, dilation=dilation, groups=groups
    )
    return rescale(sums, x, w, out, weight.shape[0], weight.dim() - 2, bounds)


def conv_transpose(
    x: QuantParams,
    w: QuantParams,
    out: QuantParams,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    bounds: Bounds = NO_BOUNDS,
    rescale: Rescale = rescale_sums,
) -> Kernel:
    """Return the kernel of a transposed convolution; arguments as `conv`.

    Args:
        weight: int8 codes [I, O, *kernel].
        output_padding: one number, or one per spatial dimension.

    Raises:
        KernelError: as `conv`, or dilation or groups other than 1, which the operator lacks.
    """
    if groups != 1 or set(dilation if isinstance(dilation, Sequence) else [dilation]) != {1}:
        raise KernelError(
            "TFLite's TRANSPOSE_CONV has no groups and no dilation; leave this layer in float"
        )
    sums = accumulate.conv_transpose_accumulator(
        x, w, weight, bias, stride=stride, pads=pads, output_padding=output_padding
    )
    return rescale(sums, x, w, out, weight.shape[1], weight.dim() - 2, bounds)


def linear(
    x: QuantParams,
    w: QuantParams,
    out: QuantParams,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    bounds: Bounds = NO_BOUNDS,
) -> Kernel:
    """Return the integer-only kernel: codes [..., I], weight codes [O, I] -> codes [..., O].

    The arithmetic is that of ai-edge-litert 1.2 and before, and of the microcontroller kernels.
    With a per-tensor weight scale the product of input and weight scale is rounded to float32
    first. Arguments and errors as `conv`, without the spatial ones.
    """
    _check(x, w, out)
    sums = accumulate.linear_accumulator(x, w, weight, bias)
    scale_x, scale_out = per_tensor(x, "input")[0], per_tensor(out, "output")[0]
    if w.scale.numel() == 1:
        by = fp.quantize_multiplier(f32(scale_x * float(w.scale)) / scale_out)
        return _multiply_sums(sums, by, out, bounds)
    return rescale_sums(sums, x, w, out, weight.shape[0], 0, bounds)


def linear_float(
    x: QuantParams,
    w: QuantParams,
    out: QuantParams,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    bounds: Bounds = NO_BOUNDS,
) -> Kernel:
    """Return the kernel of newer releases (ai-edge-litert 1.4 to 2.3), which scales in float64.

    round(acc * f64(scale x * scale w / scale out)) + zero_point, halves away from zero.
    Arguments and errors as `linear`.
    """
    _check(x, w, out)
    sums = accumulate.linear_accumulator(x, w, weight, bias)
    scale_x, scale_out = per_tensor(x, "input")[0], per_tensor(out, "output")[0]
    scales = channel_scales(w, weight.shape[0])
    factors = torch.tensor([scale_x * s / scale_out for s in scales], dtype=torch.float64)
    zero, limits = int(out.zero_point), code_bounds(out, bounds)

    def kernel(codes: Tensor) -> Tensor:
        scaled = round_half_away_tensor(sums(codes).to(torch.float64) * factors)
        return finish(scaled + zero, out, limits)

    return kernel


def matmul(
    a: QuantParams, b: QuantParams, out: QuantParams, *, bounds: Bounds = NO_BOUNDS
) -> Kernel:
    """Return the kernel of a product of two activations: [..., M, K] @ [..., K, N].

    Args:
        a: per-tensor parameters of the first operand, int8 or int16.
        b: those of the second, of the same type.
        out: those of the output, of the same type.
        bounds: real bounds of the fused activation.

    Raises:
        KernelError: other types, or int16 with a zero point.
    """
    if not all(_is_wide(p, "operand") for p in (a, b, out)):
        for params in (a, b, out):
            _check_int8(params)
    sums = accumulate.matmul_accumulator(a, b)
    scale = f32(per_tensor(a, "first input")[0] * per_tensor(b, "second input")[0])
    by = fp.quantize_multiplier(scale / per_tensor(out, "output")[0])
    return _multiply_sums(sums, by, out, bounds)
