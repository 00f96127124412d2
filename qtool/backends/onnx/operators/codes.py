"""Operators between floats and codes, which occur only in graphs to export."""

from __future__ import annotations

from typing import Any

import onnx

from qtool.backends.onnx.operators.schemas import Writer, op
from qtool.core.graph import torch_ops


def _quantize(x: Any, scale: Any, zero_point: Any) -> Any:
    return op.QuantizeLinear(x, scale, zero_point)


def _dequantize(codes: Any, scale: Any, zero_point: Any, axis: int | None = None) -> Any:
    if axis is None:
        return op.DequantizeLinear(codes, scale, zero_point)
    return op.DequantizeLinear(codes, scale, zero_point, axis=axis)


def _dequantize_once(codes: Any, scale: Any) -> Any:
    return op.Mul(op.Cast(codes, to=onnx.TensorProto.FLOAT), scale)


def _idle(x: Any) -> Any:
    return op.Max(x)


WRITERS: dict[Any, Writer] = {
    torch_ops.quantize: _quantize,
    torch_ops.dequantize: _dequantize,
    torch_ops.dequantize_once: _dequantize_once,
    torch_ops.idle: _idle,
}
