"""How qtool's own operators, and a few of ATen's, are written in ONNX.

Each function is the ONNX form of one operator, in the order of its schema; all other operators are
written by the translations of torch.onnx (onnxscript's torchlib).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxscript
import torch
from onnxscript import opset18

from qtool.graph import torch_ops

__all__ = ["CONTRIB", "TRANSLATIONS"]

aten = torch.ops.aten
op: Any = opset18  # its annotations know tensors only, not what a trace passes


def _quantize(x: Any, scale: Any, zero_point: Any) -> Any:
    return op.QuantizeLinear(x, scale, zero_point)


def _dequantize(codes: Any, scale: Any, zero_point: Any, axis: int | None = None) -> Any:
    if axis is None:
        return op.DequantizeLinear(codes, scale, zero_point)
    return op.DequantizeLinear(codes, scale, zero_point, axis=axis)


def _conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Any:
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return op.Conv(
        *inputs, strides=list(stride), pads=list(pads), dilations=list(dilation), group=groups
    )


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return op.Gemm(*inputs, transB=1)


def _gemm(x: Any, weight: Any, bias: Any = None) -> Any:
    return op.MatMul(x, weight) if bias is None else op.Gemm(x, weight, bias)


def _dynamic_linear(x: Any, codes: Any, scale: Any, bias: Any = None) -> Any:
    """In the order that the runtime fuses to DynamicQuantizeMatMul, or, where several layers read
    one tensor, to MatMulIntegerToFloat behind a DynamicQuantizeLinear that they share."""
    quantized, x_scale, zero_point = op.DynamicQuantizeLinear(x)
    sums = op.Cast(op.MatMulInteger(quantized, codes, zero_point), to=onnx.TensorProto.FLOAT)
    result = op.Mul(sums, op.Mul(x_scale, scale))
    return result if bias is None else op.Add(result, bias)


def _matmul_nbits() -> Any:
    """MatMulNBits of ONNX Runtime's own domain, of which onnx has no schema."""
    kind, parameter = onnx.defs.OpSchema.AttrType, onnx.defs.OpSchema.FormalParameter
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    schema = onnx.defs.OpSchema(
        "MatMulNBits",
        "com.microsoft",
        1,
        inputs=[
            parameter("A", "T"),
            parameter("B", "B"),
            parameter("scales", "T"),
            parameter("zero_points", "B"),
            parameter("g_idx", "I", param_option=optional),
            parameter("bias", "T", param_option=optional),
        ],
        outputs=[parameter("Y", "T")],
        type_constraints=[
            ("T", ["tensor(float)"], "float32"),
            ("B", ["tensor(uint8)"], "bytes"),
            ("I", ["tensor(int32)"], "indices"),
        ],
        attributes=[
            onnx.defs.OpSchema.Attribute(a, kind.INT)
            for a in ("K", "N", "bits", "block_size", "accuracy_level")
        ],
    )
    return onnxscript.values.Op(onnxscript.values.Opset("com.microsoft", 1), "MatMulNBits", schema)


_MATMUL_NBITS = _matmul_nbits()
_ON_CODES = 4  # accuracy_level: the kernel quantizes x to int8 in blocks; in float it is slower


def _linear_4bit(x: Any, packed: Any, scale: Any, zero_point: Any, bias: Any = None) -> Any:
    outputs, _, half = packed.shape
    return _MATMUL_NBITS(
        x,
        packed,
        scale,
        zero_point,
        None,
        bias,
        K=int(x.shape[-1]),
        N=int(outputs),
        bits=4,
        block_size=2 * int(half),
        accuracy_level=_ON_CODES,
    )


def _contrib(name: str, *attributes: str) -> Any:
    """A unary operator of ONNX Runtime's own domain, of which onnx has no schema."""
    schema = onnx.defs.OpSchema(
        name,
        "com.microsoft",
        1,
        inputs=[onnx.defs.OpSchema.FormalParameter("X", "T")],
        outputs=[onnx.defs.OpSchema.FormalParameter("Y", "T")],
        type_constraints=[("T", ["tensor(float)"], "float32")],
        attributes=[
            onnx.defs.OpSchema.Attribute(a, onnx.defs.OpSchema.AttrType.FLOAT) for a in attributes
        ],
    )
    return onnxscript.values.Op(onnxscript.values.Opset("com.microsoft", 1), name, schema)


_QUICK_GELU = _contrib("QuickGelu", "alpha")
_GELU, _FAST_GELU = _contrib("Gelu"), _contrib("FastGelu")


def _silu(x: Any) -> Any:
    return _QUICK_GELU(x, alpha=1.0)


def _gelu(x: Any, approximate: str = "none") -> Any:
    return _GELU(x) if approximate == "none" else _FAST_GELU(x)


def _reshape(x: Any, sizes: Sequence[Any]) -> Any:
    if all(isinstance(s, int) for s in sizes):
        return op.Reshape(x, op.Constant(value_ints=list(sizes)))
    one = op.Constant(value_ints=[1])
    parts = [
        op.Constant(value_ints=[s]) if isinstance(s, int) else op.Reshape(s, one) for s in sizes
    ]
    return op.Reshape(x, op.Concat(*parts, axis=0))


def _resize(mode: str, **fixed: Any) -> Callable[..., Any]:
    """upsample_*.vec, by factors where they say the same as sizes: the size of the batch would have
    to be computed. (The runtime moves transposes over a Resize whatever its `axes` say.)"""

    def write(
        x: Any,
        sizes: Sequence[int] | None,
        align: bool = False,
        factors: Sequence[float] | None = None,
    ) -> Any:
        mapping = "align_corners" if align else "pytorch_half_pixel"
        options = {"coordinate_transformation_mode": mapping, **fixed, "mode": mode}
        scales = list(factors) if factors else _factors(list(x.shape)[2:], sizes or ())
        if scales is not None:
            return op.Resize(x, None, op.Constant(value_floats=[1.0, 1.0, *scales]), **options)
        wanted = op.Concat(op.Shape(x, end=2), op.Constant(value_ints=list(sizes or ())), axis=0)
        return op.Resize(x, None, None, wanted, **options)

    return write


def _factors(before: Sequence[Any], after: Sequence[Any]) -> list[float] | None:
    """out / in, where float32 gives the same sizes and neighbours as the two integers."""
    found = []
    for size, wanted in zip(before, after, strict=True):
        if not isinstance(size, int) or not isinstance(wanted, int):
            return None
        factor = np.float32(wanted / size)
        at = np.arange(wanted)
        near = np.floor(at.astype(np.float32) / factor).astype(np.int64)
        if int(np.float32(size) * factor) != wanted or (near != at * size // wanted).any():
            return None
        found.append(float(factor))
    return found


def _nearest(x: Any, sizes: Sequence[int] | None, factors: Sequence[float] | None = None) -> Any:
    mapping = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _resize("nearest", **mapping)(x, sizes, False, factors)


def _nearest_exact(
    x: Any, sizes: Sequence[int] | None, factors: Sequence[float] | None = None
) -> Any:
    """The neighbour of each pixel's centre: floor((i + 1/2) / factor)."""
    mapping = {
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "round_prefer_ceil",
    }
    return _resize("nearest", **mapping)(x, sizes, False, factors)


def _index_select(x: Any, dim: int, index: Any) -> Any:
    return op.Gather(x, index, axis=dim)


def _global_average_pool(x: Any) -> Any:
    return op.GlobalAveragePool(x)


def _recurrent(op_type: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    def write(x: Any, w: Any, r: Any, b: Any, *states: Any, **options: Any) -> Any:
        direction = "bidirectional" if w.shape[0] == 2 else "forward"
        size = int(r.shape[2])
        return op_type(x, w, r, b, None, *states, hidden_size=size, direction=direction, **fixed)

    return write


def _lstm(x: Any, w: Any, r: Any, b: Any, h: Any = None, c: Any = None) -> Any:
    return _recurrent(op.LSTM)(x, w, r, b, h, c)


def _gru(x: Any, w: Any, r: Any, b: Any, h: Any = None) -> Any:
    return _recurrent(op.GRU, linear_before_reset=1)(x, w, r, b, h)


def _rnn(x: Any, w: Any, r: Any, b: Any, h: Any, function: str) -> Any:
    names = [function.capitalize()] * int(w.shape[0])
    return _recurrent(op.RNN, activations=names)(x, w, r, b, h)


def _pad(x: Any, widths: Sequence[int], fill: Any) -> Any:
    rank = len(x.shape)
    begins, ends = [0] * rank, [0] * rank
    for i in range(len(widths) // 2):  # ATen: from the last dimension, (begin, end) by (begin, end)
        begins[rank - 1 - i], ends[rank - 1 - i] = widths[2 * i], widths[2 * i + 1]
    return op.Pad(x, op.Constant(value_ints=[*begins, *ends]), fill)


def _constant_pad(x: Any, widths: Sequence[int], value: float = 0.0) -> Any:
    return _pad(x, widths, op.CastLike(op.Constant(value_float=float(value)), x))


def _pad_codes(codes: Any, widths: Sequence[int], value: int) -> Any:
    fill = np.array(value, dtype=codes.dtype.numpy())
    return _pad(codes, widths, op.Constant(value=onnx.numpy_helper.from_array(fill)))


def _embedding(ids: Any, table: Any) -> Any:
    return op.Gather(table, ids)


def _embedding_codes(ids: Any, codes: Any, scale: Any) -> Any:
    """Only the rows that are read: a DequantizeLinear of the table would take all of it."""
    rows = op.Cast(op.Gather(codes, ids), to=onnx.TensorProto.FLOAT)
    return op.Mul(rows, op.Unsqueeze(op.Gather(scale, ids), op.Constant(value_ints=[-1])))


def _idle(x: Any) -> Any:
    return op.Max(x)


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    torch_ops.quantize: _quantize,
    torch_ops.dequantize: _dequantize,
    torch_ops.pad_codes: _pad_codes,
    torch_ops.embedding: _embedding,
    torch_ops.embedding_codes: _embedding_codes,
    torch_ops.idle: _idle,
    aten.index_select.default: _index_select,
    torch_ops.reshape: _reshape,
    aten.upsample_nearest1d.vec: _nearest,
    aten.upsample_nearest2d.vec: _nearest,
    aten.upsample_nearest3d.vec: _nearest,
    aten._upsample_nearest_exact2d.vec: _nearest_exact,
    aten.upsample_linear1d.vec: _resize("linear"),
    aten.upsample_bilinear2d.vec: _resize("linear"),
    aten.upsample_trilinear3d.vec: _resize("linear"),
    aten.upsample_bicubic2d.vec: _resize("cubic", cubic_coeff_a=-0.75),
    torch_ops.conv: _conv,
    torch_ops.gemm: _gemm,
    torch_ops.dynamic_linear: _dynamic_linear,
    torch_ops.global_average_pool: _global_average_pool,
    torch_ops.gru: _gru,
    torch_ops.lstm: _lstm,
    torch_ops.rnn: _rnn,
    aten.linear.default: _linear,  # flat by the time it gets here: see passes/flatten_linear.py
    aten.constant_pad_nd.default: _constant_pad,
}

CONTRIB: dict[Any, Callable[..., Any]] = {  # operators that only ONNX Runtime has
    aten.silu.default: _silu,  # one kernel; Sigmoid and Mul are two
    aten.gelu.default: _gelu,  # one kernel; below opset 20 the decomposed form is not fused
    torch_ops.linear_4bit: _linear_4bit,
}
