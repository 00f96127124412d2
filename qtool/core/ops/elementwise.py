"""Elementwise operators: sums, products, activation functions, clamps; and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.ops.onnx_forms import contrib, op
from qtool.core.ops.row import Op, Role
from qtool.core.types import Bounds

aten = torch.ops.aten


def _silu(x: Any) -> Any:
    return contrib("QuickGelu", attributes=("alpha",))(x, alpha=1.0)


def _gelu(x: Any, approximate: str = "none") -> Any:
    return contrib("Gelu" if approximate == "none" else "FastGelu")(x)


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


def _relu_bounds(node: fx.Node) -> Bounds:
    return 0.0, None


def _clamp_bounds(node: fx.Node) -> Bounds:
    return G.argument(node, 1, "min"), G.argument(node, 2, "max")


ELEMENTWISE = (
    Op(key="add", targets=(aten.add.Tensor,), inputs=(0, 1)),
    Op(key="mul", targets=(aten.mul.Tensor,), inputs=(0, 1)),
    Op(key="sigmoid", targets=(aten.sigmoid.default,)),
    Op(key="leaky_relu", targets=(aten.leaky_relu.default,)),
    # one kernel of ONNX Runtime; Sigmoid and Mul are two
    Op(key="silu", targets=(aten.silu.default,), contrib=_silu),
    # one kernel; below opset 20 the decomposed form is not fused
    Op(key="gelu", targets=(aten.gelu.default,), contrib=_gelu),
    Op(key="hard_swish", targets=(aten.hardswish.default,)),
    Op(key="hard_sigmoid", targets=(aten.hardsigmoid.default,)),
    Op(key="tanh", targets=(aten.tanh.default,)),
    Op(key="elu", targets=(aten.elu.default,)),
    Op(key="prelu", targets=(aten.prelu.default,)),
    Op(key="softmax", targets=(aten.softmax.int,)),
    Op(key="relu", targets=(aten.relu.default,), role=Role.CLIP, bounds=_relu_bounds),
    Op(key="clip", targets=(aten.clamp.default,), role=Role.CLIP, bounds=_clamp_bounds),
    Op(key="rescale", targets=(torch_ops.rescale,), role=Role.PASS, scale_factor=1),
)

WRITERS = {aten.rms_norm.default: _rms_norm, aten.rsub.Scalar: _number_minus}
"""Operators that torch.onnx decomposes by tracing the graph again."""
