"""Activation functions, RMSNorm, and differences from numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qtool.backends.onnx.operators.schemas import Writer, onnx_operator, op

aten = torch.ops.aten


def _silu(x: Any) -> Any:
    return onnx_operator("QuickGelu", ("X",), (("alpha", "FLOAT"),))(x, alpha=1.0)


def _gelu(x: Any, approximate: str = "none") -> Any:
    return onnx_operator("Gelu" if approximate == "none" else "FastGelu", ("X",))(x)


def _rms_norm(
    x: Any, shape: Sequence[int], weight: Any = None, epsilon: float | None = None
) -> Any:
    """The form that ONNX Runtime fuses to one kernel, SimplifiedLayerNormalization."""
    epsilon = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    two, eps = (op.CastLike(op.Constant(value_float=v), x) for v in (2.0, epsilon))
    axes = op.Constant(value_ints=list(range(-len(shape), 0)))
    normalized = op.Div(x, op.Sqrt(op.Add(op.ReduceMean(op.Pow(x, two), axes), eps)))
    return normalized if weight is None else op.Mul(normalized, weight)


def _number_minus(x: Any, number: float, factor: float = 1) -> Any:
    """number - x; torch.onnx has it only for tensors."""
    minuend, scale = (op.CastLike(op.Constant(value_float=float(v)), x) for v in (number, factor))
    return op.Sub(minuend, x if factor == 1 else op.Mul(x, scale))


WRITERS: dict[Any, Writer] = {aten.rms_norm.default: _rms_norm, aten.rsub.Scalar: _number_minus}
"""Operators that torch.onnx decomposes by tracing the graph again."""


CONTRIB: dict[Any, Writer] = {aten.silu.default: _silu, aten.gelu.default: _gelu}
"""Each is one kernel of ONNX Runtime: Sigmoid and Mul are two, and below opset 20 the decomposed
form of gelu is not fused."""
