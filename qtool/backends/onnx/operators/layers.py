"""Convolutions and linear layers, and the forms of linear layers with integer weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import torch

from qtool.backends.onnx.operators.schemas import Writer, onnx_operator, op
from qtool.core.graph import torch_ops

# The kernel quantizes x to int8 in blocks. At level 0, its default, it dequantizes its weights in
# each call: at 4 bits slower than a float layer, at 8 bits 10 to 50 times.
_ACCURACY_LEVEL = 4


def _with_bias(*inputs: Any) -> list[Any]:
    """Return the inputs without the last one, the bias, if that is None."""
    return list(inputs if inputs[-1] is not None else inputs[:-1])


def _conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Any:
    options = {"strides": list(stride), "pads": list(pads), "dilations": list(dilation)}
    return op.Conv(*_with_bias(x, weight, bias), **options, group=groups)


def _conv_transpose(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Any:
    return op.ConvTranspose(
        *_with_bias(x, weight, bias),
        strides=list(stride),
        pads=[*padding, *padding],
        output_padding=list(output_padding),
        group=groups,
        dilations=list(dilation),
    )


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    return op.Gemm(*_with_bias(x, weight, bias), transB=1)


def _gemm(x: Any, weight: Any, bias: Any = None) -> Any:
    return op.MatMul(x, weight) if bias is None else op.Gemm(x, weight, bias)


def _dynamic_linear(x: Any, codes: Any, scale: Any, bias: Any = None) -> Any:
    """The order that ONNX Runtime fuses to DynamicQuantizeMatMul, or, for several layers that read
    one tensor, to MatMulIntegerToFloat behind a shared DynamicQuantizeLinear."""
    quantized, x_scale, zero_point = op.DynamicQuantizeLinear(x)
    sums = op.Cast(op.MatMulInteger(quantized, codes, zero_point), to=onnx.TensorProto.FLOAT)
    result = op.Mul(sums, op.Mul(x_scale, scale))
    return result if bias is None else op.Add(result, bias)


def _linear_nbits(
    x: Any, packed: Any, scale: Any, zero_point: Any, bias: Any = None, bits: int = 4
) -> Any:
    outputs, _, width = packed.shape
    attributes = ("K", "N", "bits", "block_size", "accuracy_level")
    write = onnx_operator(
        "MatMulNBits",
        ("A", "B", "scales", "zero_points", "g_idx", "bias"),
        tuple((attribute, "INT") for attribute in attributes),
    )
    sizes = {"K": int(x.shape[-1]), "N": int(outputs), "block_size": int(width) * 8 // bits}
    options = {"bits": bits, "accuracy_level": _ACCURACY_LEVEL}
    return write(x, packed, scale, zero_point, None, bias, **sizes, **options)


WRITERS: dict[Any, Writer] = {
    torch_ops.conv: _conv,
    torch_ops.conv_transpose: _conv_transpose,
    torch.ops.aten.linear.default: _linear,
    torch_ops.gemm: _gemm,
    torch_ops.dynamic_linear: _dynamic_linear,
}


CONTRIB: dict[Any, Writer] = {torch_ops.linear_nbits: _linear_nbits}
