"""Elementwise operators: sums, products, activation functions, clamps; and softmax."""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.ops.row import Op, Role
from qtool.core.types import Bounds

aten = torch.ops.aten


def _relu_bounds(node: fx.Node) -> Bounds:
    return 0.0, None


def _clamp_bounds(node: fx.Node) -> Bounds:
    return G.argument(node, 1, "min"), G.argument(node, 2, "max")


ELEMENTWISE = (
    Op(key="add", targets=(aten.add.Tensor,), inputs=(0, 1)),
    Op(key="mul", targets=(aten.mul.Tensor,), inputs=(0, 1)),
    Op(key="sigmoid", targets=(aten.sigmoid.default,)),
    Op(key="leaky_relu", targets=(aten.leaky_relu.default,)),
    Op(key="silu", targets=(aten.silu.default,)),
    Op(key="gelu", targets=(aten.gelu.default,)),
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
