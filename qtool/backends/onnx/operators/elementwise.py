"""Elementwise functions, lookups in tables, and operators between floats and codes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import torch

from qtool.backends.onnx.operators.schemas import TorchOperator, Value, Writer, onnx_operator, op
from qtool.core.graph import torch_ops

aten = torch.ops.aten


def _silu(x: Value) -> Value:
    return onnx_operator("QuickGelu", ("X",), (("alpha", "FLOAT"),))(x, alpha=1.0)


def _gelu(x: Value, approximate: str = "none") -> Value:
    return onnx_operator("Gelu" if approximate == "none" else "FastGelu", ("X",))(x)


def _rms_norm(
    x: Value, shape: Sequence[int], weight: Value = None, epsilon: float | None = None
) -> Value:
    """The form that ONNX Runtime fuses to one kernel, SimplifiedLayerNormalization."""
    epsilon = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    two, eps = (op.CastLike(op.Constant(value_float=v), x) for v in (2.0, epsilon))
    axes = op.Constant(value_ints=list(range(-len(shape), 0)))
    normalized = op.Div(x, op.Sqrt(op.Add(op.ReduceMean(op.Pow(x, two), axes), eps)))
    return normalized if weight is None else op.Mul(normalized, weight)


def _number_minus(x: Value, number: float, factor: float = 1) -> Value:
    """number - x; torch.onnx has it only for tensors."""
    minuend, scale = (op.CastLike(op.Constant(value_float=float(v)), x) for v in (number, factor))
    return op.Sub(minuend, x if factor == 1 else op.Mul(x, scale))


def _rescale(x: Value, factor: float) -> Value:
    return op.Mul(x, factor)


def _quantize(x: Value, scale: Value, zero_point: Value) -> Value:
    return op.QuantizeLinear(x, scale, zero_point)


def _dequantize(codes: Value, scale: Value, zero_point: Value, axis: int | None = None) -> Value:
    if axis is None:
        return op.DequantizeLinear(codes, scale, zero_point)
    return op.DequantizeLinear(codes, scale, zero_point, axis=axis)


def _dequantize_once(codes: Value, scale: Value) -> Value:
    return op.Mul(op.Cast(codes, to=onnx.TensorProto.FLOAT), scale)


def _idle(x: Value) -> Value:
    return op.Max(x)


def _embedding(ids: Value, table: Value) -> Value:
    return op.Gather(table, ids)


def _embedding_codes(ids: Value, codes: Value, scale: Value) -> Value:
    """Dequantizes only the rows that are read; a DequantizeLinear would dequantize the table."""
    rows = op.Cast(op.Gather(codes, ids), to=onnx.TensorProto.FLOAT)
    return op.Mul(rows, op.Unsqueeze(op.Gather(scale, ids), op.Constant(value_ints=[-1])))


def _embedding_nbits(
    ids: Value, packed: Value, scale: Value, zero_point: Value, bits: int
) -> Value:
    """Looks up blocks and joins them, so that a layer can share the tensor of codes as its weight.
    Each zero point has a byte of its own."""
    width = packed.shape[-1]
    attributes = ("bits", "block_size", "gather_axis", "quantize_axis")
    write = onnx_operator(
        "GatherBlockQuantized",
        ("data", "indices", "scales", "zero_points"),
        tuple((attribute, "INT") for attribute in attributes),
    )
    last = op.Constant(value_ints=[-1])
    parameters = [op.Unsqueeze(t, last) for t in (scale, zero_point) if t is not None]
    sizes = {"bits": bits, "block_size": int(width) * 8 // bits}
    rows = write(packed, ids, *parameters, **sizes, gather_axis=0, quantize_axis=2)
    return op.Reshape(rows, op.Constant(value_ints=[*[0] * len(ids.shape), -1]))


WRITERS: dict[TorchOperator, Writer] = {
    # Operators that torch.onnx decomposes by tracing the graph again.
    aten.rms_norm.default: _rms_norm,
    aten.rsub.Scalar: _number_minus,
    torch_ops.rescale: _rescale,
    torch_ops.quantize: _quantize,
    torch_ops.dequantize: _dequantize,
    torch_ops.dequantize_once: _dequantize_once,
    torch_ops.idle: _idle,
    torch_ops.embedding: _embedding,
    torch_ops.embedding_codes: _embedding_codes,
}

CONTRIB: dict[TorchOperator, Writer] = {
    # Each is one kernel of ONNX Runtime: Sigmoid and Mul are two, and below opset 20 the decomposed
    # form of gelu is not fused.
    aten.silu.default: _silu,
    aten.gelu.default: _gelu,
    torch_ops.embedding_nbits: _embedding_nbits,
}
