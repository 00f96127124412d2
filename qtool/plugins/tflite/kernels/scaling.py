"""How TFLite scales the sums of CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV, FULLY_CONNECTED and
BATCH_MATMUL.

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

from collections.abc import Callable

import torch
from torch import Tensor

from qtool.backends.kernels import fixed_point as fp
from qtool.backends.kernels.params import channel_scales, f32, is_int16, per_tensor
from qtool.backends.kernels.products import ToCodes
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import CallEdit
from qtool.core.types import INT8, Bounds
from qtool.plugins.tflite.kernels.bounds import code_bounds, finish
from qtool.plugins.tflite.kernels.quantize import round_half_away_tensor

Multiply = Callable[[Tensor, fp.Multiplier], Tensor]
"""Sums [N, O, *out] and a multiplier per channel -> rounded products."""


def scale_by_channel(
    x: QuantParams,
    w: QuantParams,
    out: QuantParams,
    channels: int,
    rank: int,
    bounds: Bounds,
    multiply: Multiply | None = None,
) -> ToCodes:
    """Bind the multiplication by scale x * scale w / scale out, a multiplier per output channel.

    See `products.Scale`. `multiply` multiplies sums of 32 bits; by default as reference kernels.
    """
    _check_layer(x, w, out)
    scale_x, scale_out = per_tensor(x, "input")[0], per_tensor(out, "output")[0]
    reals = [scale_x * s / scale_out for s in channel_scales(w, channels)]
    by = fp.channel_multipliers(reals, (channels, *[1] * rank))
    return _multiplied(by, out, bounds, multiply)


def scale_linear(
    x: QuantParams, w: QuantParams, out: QuantParams, channels: int, rank: int, bounds: Bounds
) -> ToCodes:
    """Bind FULLY_CONNECTED of ai-edge-litert 1.2 and before, and of the microcontroller kernels.

    With one scale of the weight, the product of input and weight scale is rounded to float32 first.
    """
    _check_layer(x, w, out)
    if w.scale.numel() > 1:
        return scale_by_channel(x, w, out, channels, rank, bounds)
    return _by_one_scale(x, w, out, bounds)


def scale_in_float64(
    x: QuantParams, w: QuantParams, out: QuantParams, channels: int, rank: int, bounds: Bounds
) -> ToCodes:
    """Bind FULLY_CONNECTED of newer releases (ai-edge-litert 1.4 to 2.3).

    round(acc * f64(scale x * scale w / scale out)) + zero_point, halves away from zero.
    """
    _check_layer(x, w, out)
    scale_x, scale_out = per_tensor(x, "input")[0], per_tensor(out, "output")[0]
    scales = channel_scales(w, channels)
    factors = torch.tensor([scale_x * s / scale_out for s in scales], dtype=torch.float64)
    zero, limits = int(out.zero_point), code_bounds(out, bounds)

    def to_codes(sums: Tensor) -> Tensor:
        scaled = round_half_away_tensor(sums.to(torch.float64) * factors)
        return finish(scaled + zero, out, limits)

    return to_codes


def scale_product(
    a: QuantParams, b: QuantParams, out: QuantParams, channels: int, rank: int, bounds: Bounds
) -> ToCodes:
    """Bind BATCH_MATMUL: int8 with any zero points, or int16 without."""
    _check_types(a, b, out)
    return _by_one_scale(a, b, out, bounds)


def _by_one_scale(a: QuantParams, b: QuantParams, out: QuantParams, bounds: Bounds) -> ToCodes:
    scale = f32(per_tensor(a, "first input")[0] * per_tensor(b, "second input")[0])
    by = fp.quantize_multiplier(scale / per_tensor(out, "output")[0])
    return _multiplied(by, out, bounds)


def _multiplied(
    by: fp.Multiplier, out: QuantParams, bounds: Bounds, multiply: Multiply | None = None
) -> ToCodes:
    """Bind the multiplication of sums, plus the zero point, within the bounds."""
    zero, limits = per_tensor(out, "output")[1], code_bounds(out, bounds)
    wide = is_int16(out.qtype)
    scaled = fp.multiply_wide if wide else multiply or fp.multiply_by_quantized_multiplier
    return lambda sums: finish(scaled(sums.to(torch.int64), by) + zero, out, limits)


def _check_layer(x: QuantParams, w: QuantParams, out: QuantParams) -> None:
    _check_int8(w)
    _check_types(x, out)
    if bool(w.zero_point.any()):
        raise KernelError(
            "TFLite needs int8 weights with zero point 0", CallEdit("quantize symmetrically")
        )


def _check_types(*tensors: QuantParams) -> None:
    """Raise KernelError unless all are int8, or all int16 with the zero point 0."""
    if not all(map(_is_wide, tensors)):
        for each in tensors:
            _check_int8(each)


def _is_wide(params: QuantParams) -> bool:
    wide = is_int16(params.qtype)
    if wide and per_tensor(params, "operand")[1]:
        raise KernelError("int16 tensors need zero points of 0", CallEdit("quantize symmetrically"))
    return wide


def _check_int8(params: QuantParams) -> None:
    if params.qtype.dtype != INT8.dtype:
        raise KernelError(f"this TFLite kernel takes int8 here, not {params.qtype}")
