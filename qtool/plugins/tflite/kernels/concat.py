"""TFLite CONCATENATION, and the QUANTIZE operators a converter puts before it.

Sources: tflite/kernels/concatenation.cc (Prepare); tflite/kernels/internal/reference/
concatenation.h (ConcatenationWithScaling).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qtool.backends.kernels.params import Kernel, f32, is_int16, per_tensor, same_params
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import CallEdit
from qtool.core.types import UINT8
from qtool.plugins.tflite.kernels.quantize import requantize as requantize_binder
from qtool.plugins.tflite.kernels.quantize import round_half_away_tensor


def concat(
    inputs: Sequence[QuantParams], out: QuantParams, *, axis: int, requantize: bool = True
) -> Kernel:
    """Return the kernel: code tensors -> their concatenation along `axis`.

    Inputs with the output's parameters are copied. For others, uint8 is rescaled inside the
    operator, in float32; int8 and int16 pass a QUANTIZE operator first, which a converter inserts.

    Args:
        inputs: per-tensor parameters of each input.
        out: per-tensor parameters of the output.
        axis: axis of the concatenation.
        requantize: False binds the operator without QUANTIZE; int16 codes are then copied, whatever
            their scale.

    Raises:
        KernelError: types differ, int16 zero points are not 0, or int8 parameters differ without
            `requantize` (the runtime refuses them).
    """
    per_input = [_rescale(p, out, requantize) for p in inputs]

    def kernel(*codes: Tensor) -> Tensor:
        return torch.cat([f(x) for f, x in zip(per_input, codes, strict=True)], dim=axis)

    return kernel


def _rescale(x: QuantParams, out: QuantParams, requantize: bool) -> Kernel:
    if x.qtype.dtype != out.qtype.dtype:
        raise KernelError(
            f"cannot concatenate {x.qtype} into {out.qtype}", CallEdit("use one type")
        )
    zeros = per_tensor(x, "input")[1], per_tensor(out, "output")[1]
    if is_int16(out.qtype) and any(zeros):
        raise KernelError(
            "int16 CONCATENATION needs zero points of 0", CallEdit("quantize symmetrically")
        )
    if same_params(x, out):
        return _copy
    if out.qtype.dtype == UINT8.dtype:
        return _rescale_uint8(x, out)
    if requantize:
        return requantize_binder(x, out)
    if is_int16(out.qtype):
        return _copy
    raise KernelError(
        "int8 CONCATENATION copies codes, and the runtime refuses inputs whose scale or zero "
        "point differs from the output's; requantize the input first (requantize=True)"
    )


def _copy(codes: Tensor) -> Tensor:
    return codes


def _rescale_uint8(x: QuantParams, out: QuantParams) -> Kernel:
    """Return round(code * c + bias) + zero_point in float32; c and bias use a reciprocal."""
    scale_in, zero_in = per_tensor(x, "input")
    scale_out, zero_out = per_tensor(out, "output")
    factor = f32(scale_in * f32(1.0 / scale_out))
    bias = f32(-zero_in * factor)

    def kernel(codes: Tensor) -> Tensor:
        values = codes.to(torch.float32) * factor + bias
        rounded = round_half_away_tensor(values) + zero_out
        return rounded.clamp(0, 255).to(torch.uint8)

    return kernel
