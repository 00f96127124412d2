"""Layers with weights: convolutions and linear layers, recurrent layers; and pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import onnx
import torch

from qtool.backends.onnx.operators.schemas import TorchOperator, Value, Writer, onnx_operator, op
from qtool.core.errors import ExportError
from qtool.core.graph import torch_ops
from qtool.core.ops.recurrent import dynamic_lstm, gru, lstm, rnn
from qtool.core.windows import last_pad, spans

# The kernel quantizes x to int8 in blocks. At level 0, its default, it dequantizes its weights in
# each call: at 4 bits slower than a float layer, at 8 bits 10 to 50 times.
_ACCURACY_LEVEL = 4
_DYNAMIC_INPUTS = (
    *("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    *("W_scale", "W_zero_point", "R_scale", "R_zero_point"),
)
_DYNAMIC_ATTRIBUTES = (("hidden_size", "INT"), ("direction", "STRING"))


def _with_bias(*inputs: Value) -> list[Value]:
    """Return the inputs without the last one, the bias, if that is None."""
    return list(inputs if inputs[-1] is not None else inputs[:-1])


def _conv(
    x: Value,
    weight: Value,
    bias: Value = None,
    stride: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Value:
    options = {"strides": list(stride), "pads": list(pads), "dilations": list(dilation)}
    return op.Conv(*_with_bias(x, weight, bias), **options, group=groups)


def _conv_transpose(
    x: Value,
    weight: Value,
    bias: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Value:
    return op.ConvTranspose(
        *_with_bias(x, weight, bias),
        strides=list(stride),
        pads=[*padding, *padding],
        output_padding=list(output_padding),
        group=groups,
        dilations=list(dilation),
    )


def _linear(x: Value, weight: Value, bias: Value = None) -> Value:
    return op.Gemm(*_with_bias(x, weight, bias), transB=1)


def _gemm(x: Value, weight: Value, bias: Value = None) -> Value:
    return op.MatMul(x, weight) if bias is None else op.Gemm(x, weight, bias)


def _dynamic_linear(x: Value, codes: Value, scale: Value, bias: Value = None) -> Value:
    """The order that ONNX Runtime fuses to DynamicQuantizeMatMul, or, for several layers that read
    one tensor, to MatMulIntegerToFloat behind a shared DynamicQuantizeLinear."""
    quantized, x_scale, zero_point = op.DynamicQuantizeLinear(x)
    sums = op.Cast(op.MatMulInteger(quantized, codes, zero_point), to=onnx.TensorProto.FLOAT)
    result = op.Mul(sums, op.Mul(x_scale, scale))
    return result if bias is None else op.Add(result, bias)


def _linear_nbits(
    x: Value, packed: Value, scale: Value, zero_point: Value, bias: Value = None, bits: int = 4
) -> Value:
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


def _max_pool(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Value:
    ends, sizes = list(padding), list(x.shape)[2:]
    if ceil_mode and all(isinstance(size, int) for size in sizes):
        # as pads: onnx before opset 22 infers an extra window that begins in the padding
        wide = list(map(last_pad, sizes, spans(kernel, dilation), stride, padding, padding))
        if all(end < k for end, k in zip(wide, kernel, strict=True)):  # ONNX Runtime requires it
            ends, ceil_mode = wide, False
    largest, _ = op.MaxPool(
        x,
        kernel_shape=list(kernel),
        strides=list(stride),
        pads=[*padding, *ends],
        dilations=list(dilation),
        ceil_mode=int(ceil_mode),
    )
    return largest


def _average_pool(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    counted: bool,
    divisor: int | None,
) -> Value:
    if divisor is not None:
        return _divided(x, kernel, stride, padding, ceil_mode, divisor)
    return op.AveragePool(
        x,
        kernel_shape=list(kernel),
        strides=list(stride),
        pads=[*padding, *padding],
        ceil_mode=int(ceil_mode),
        count_include_pad=int(counted),
    )


def _divided(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    divisor: int,
) -> Value:
    """A multiple of the mean over full windows: the image is padded with zeros first."""
    sizes, ends = list(x.shape)[2:], list(padding)
    if ceil_mode:
        if not all(isinstance(size, int) for size in sizes):
            raise ExportError("an average pool with ceil_mode and a divisor takes fixed sizes only")
        ends = list(map(last_pad, sizes, kernel, stride, padding, padding))
    pads = op.Constant(value_ints=[0, 0, *padding, 0, 0, *ends])
    mean = op.AveragePool(op.Pad(x, pads), kernel_shape=list(kernel), strides=list(stride))
    return op.Mul(mean, op.Constant(value_float=prod(kernel) / divisor))


def _global_average_pool(x: Value) -> Value:
    return op.GlobalAveragePool(x)


def _adaptive(reduce: str) -> Writer:
    """Return the writer of an adaptive pool: the reduced slices of one dimension after the other,
    at positions computed from its size."""

    def write(x: Value, sizes: Sequence[int]) -> Value:
        for axis, count in enumerate(sizes, start=2):
            if count:
                x = _along(x, axis, count, getattr(op, reduce))
        return x

    return write


def _along(x: Value, axis: int, count: int, reduce: Writer) -> Value:
    axes = op.Constant(value_ints=[axis])
    if count == 1:
        return reduce(x, axes, keepdims=1)
    size, windows = op.Shape(x, start=axis, end=axis + 1), []
    for i in range(count):  # floor(i * size / count) to ceil((i + 1) * size / count)
        begin = op.Mul(size, op.Constant(value_ints=[i]))
        end = op.Add(
            op.Mul(size, op.Constant(value_ints=[i + 1])), op.Constant(value_ints=[count - 1])
        )
        ends = (op.Div(each, op.Constant(value_ints=[count])) for each in (begin, end))
        windows.append(reduce(op.Slice(x, *ends, axes), axes, keepdims=1))
    return op.Concat(*windows, axis=axis)


def _layer(op_type: Callable[..., Value], **fixed: Any) -> Callable[..., Value]:
    def write(x: Value, w: Value, r: Value, b: Value, *states: Value, **options: Any) -> Value:
        direction = "bidirectional" if w.shape[0] == 2 else "forward"
        size = int(r.shape[2])
        return op_type(x, w, r, b, None, *states, hidden_size=size, direction=direction, **fixed)

    return write


def _write_lstm(x: Value, w: Value, r: Value, b: Value, h: Value = None, c: Value = None) -> Value:
    return _layer(op.LSTM)(x, w, r, b, h, c)


def _write_gru(x: Value, w: Value, r: Value, b: Value, h: Value = None) -> Value:
    return _layer(op.GRU, linear_before_reset=1)(x, w, r, b, h)


def _write_rnn(x: Value, w: Value, r: Value, b: Value, h: Value, function: str) -> Value:
    names = [function.capitalize()] * int(w.shape[0])
    return _layer(op.RNN, activations=names)(x, w, r, b, h)


def _write_dynamic_lstm(
    x: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value,
    r: Value,
    r_scale: Value,
    r_zero: Value,
    b: Value,
    h: Value = None,
    c: Value = None,
) -> Value:
    write = onnx_operator("DynamicQuantizeLSTM", _DYNAMIC_INPUTS, _DYNAMIC_ATTRIBUTES, 3)
    direction = "bidirectional" if w.shape[0] == 2 else "forward"
    scales = (w_scale, w_zero, r_scale, r_zero)
    size = int(r.shape[1])
    return write(*(x, w, r, b, None, h, c, None, *scales), hidden_size=size, direction=direction)


WRITERS: dict[TorchOperator, Writer] = {
    torch_ops.conv: _conv,
    torch_ops.conv_transpose: _conv_transpose,
    torch.ops.aten.linear.default: _linear,
    torch_ops.gemm: _gemm,
    torch_ops.dynamic_linear: _dynamic_linear,
    torch_ops.adaptive_average_pool: _adaptive("ReduceMean"),
    torch_ops.adaptive_max_pool: _adaptive("ReduceMax"),
    torch_ops.global_average_pool: _global_average_pool,
    torch_ops.average_pool: _average_pool,
    torch_ops.max_pool: _max_pool,
    lstm: _write_lstm,
    gru: _write_gru,
    rnn: _write_rnn,
}

CONTRIB: dict[TorchOperator, Writer] = {
    torch_ops.linear_nbits: _linear_nbits,
    dynamic_lstm: _write_dynamic_lstm,
}
