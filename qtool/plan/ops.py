"""What each operator is to the planner: one row per ATen operator.

The `key` is the operator's name everywhere else: in targets, kernels and reports. An operator
without a row is left in float and named in the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import fx

from qtool.graph import torch_ops

__all__ = ["OPS", "OpRow", "Role", "data_inputs", "row_of"]

aten = torch.ops.aten


class Role(Enum):
    """What happens to codes in an operator."""

    COMPUTE = "compute"  # codes in, arithmetic, new codes out
    PASS = "pass"  # the same codes at other places: input and output share parameters
    CLIP = "clip"  # a clamp, free when the quantization of its output already saturates there


@dataclass(frozen=True)
class OpRow:
    """key: name of the operator. inputs: positions of the data arguments. weight, bias: positions
    of constant arguments; the weight's output channels lie along `channel_axis`. recurrent:
    position of the weight that a recurrent layer has for its state, alike in its axes."""

    key: str
    role: Role
    inputs: tuple[int, ...] = (0,)
    weight: int | None = None
    bias: int | None = None
    channel_axis: int = 0
    recurrent: int | None = None


def _weighted(key: str, channel_axis: int = 0) -> OpRow:
    return OpRow(key, Role.COMPUTE, (0,), weight=1, bias=2, channel_axis=channel_axis)


def _recurrent(key: str) -> OpRow:
    return OpRow(key, Role.COMPUTE, (0,), weight=1, channel_axis=1, recurrent=2)


_PASS = OpRow("pass", Role.PASS)

OPS: Mapping[Any, OpRow] = {
    torch_ops.conv: _weighted("conv"),
    aten.conv_transpose1d.default: _weighted("conv_transpose", 1),
    aten.conv_transpose2d.input: _weighted("conv_transpose", 1),
    aten.conv_transpose3d.input: _weighted("conv_transpose", 1),
    aten.linear.default: _weighted("linear"),
    aten.matmul.default: OpRow("matmul", Role.COMPUTE, (0, 1)),
    aten.bmm.default: OpRow("matmul", Role.COMPUTE, (0, 1)),
    aten.mm.default: OpRow("matmul", Role.COMPUTE, (0, 1)),
    aten.baddbmm.default: OpRow("matmul", Role.COMPUTE, (1, 2)),
    aten.einsum.default: OpRow("einsum", Role.COMPUTE, (1,)),
    torch_ops.embedding: OpRow("embedding", Role.COMPUTE, (0,), weight=1),
    torch_ops.lstm: _recurrent("lstm"),
    torch_ops.gru: _recurrent("gru"),
    torch_ops.rnn: _recurrent("rnn"),
    aten.scaled_dot_product_attention.default: OpRow("attention", Role.COMPUTE, (0, 1, 2)),
    aten.add.Tensor: OpRow("add", Role.COMPUTE, (0, 1)),
    aten.mul.Tensor: OpRow("mul", Role.COMPUTE, (0, 1)),
    aten.cat.default: OpRow("concat", Role.COMPUTE, (0,)),
    torch_ops.global_average_pool: OpRow("global_average_pool", Role.COMPUTE),
    aten.avg_pool1d.default: OpRow("average_pool", Role.COMPUTE),
    aten.avg_pool2d.default: OpRow("average_pool", Role.COMPUTE),
    aten.avg_pool3d.default: OpRow("average_pool", Role.COMPUTE),
    aten.max_pool1d.default: OpRow("max_pool", Role.PASS),
    aten.max_pool2d.default: OpRow("max_pool", Role.PASS),
    aten.max_pool3d.default: OpRow("max_pool", Role.PASS),
    aten.sigmoid.default: OpRow("sigmoid", Role.COMPUTE),
    aten.leaky_relu.default: OpRow("leaky_relu", Role.COMPUTE),
    aten.silu.default: OpRow("silu", Role.COMPUTE),
    aten.gelu.default: OpRow("gelu", Role.COMPUTE),
    aten.hardswish.default: OpRow("hard_swish", Role.COMPUTE),
    aten.hardsigmoid.default: OpRow("hard_sigmoid", Role.COMPUTE),
    aten.tanh.default: OpRow("tanh", Role.COMPUTE),
    aten.elu.default: OpRow("elu", Role.COMPUTE),
    aten.prelu.default: OpRow("prelu", Role.COMPUTE),
    aten.softmax.int: OpRow("softmax", Role.COMPUTE),
    aten.relu.default: OpRow("relu", Role.CLIP),
    aten.clamp.default: OpRow("clip", Role.CLIP),
    aten.constant_pad_nd.default: OpRow("pad", Role.PASS),
    torch_ops.rescale: OpRow("rescale", Role.PASS),
    aten.index_select.default: _PASS,
    aten.reshape.default: _PASS,
    aten.flatten.using_ints: _PASS,
    aten.squeeze.default: _PASS,
    aten.squeeze.dim: _PASS,
    aten.squeeze.dims: _PASS,
    aten.unsqueeze.default: _PASS,
    aten.permute.default: _PASS,
    aten.transpose.int: _PASS,
    aten.slice.Tensor: _PASS,
    aten.select.int: _PASS,
    aten.flip.default: _PASS,
    aten.expand.default: _PASS,
    aten.repeat.default: _PASS,
    aten.tile.default: _PASS,
    aten.upsample_nearest2d.default: _PASS,
    aten.upsample_nearest2d.vec: _PASS,
    aten._upsample_nearest_exact2d.vec: _PASS,
    aten.pixel_shuffle.default: _PASS,
}


def row_of(node: fx.Node) -> OpRow | None:
    return OPS.get(node.target) if node.op == "call_function" else None


def data_inputs(node: fx.Node) -> list[Any]:
    """The data arguments of a node (nodes or numbers), lists flattened: a concat has many."""
    row = OPS[node.target]
    found: list[Any] = []
    for index in row.inputs:
        argument = node.args[index]
        found += argument if isinstance(argument, list | tuple) else [argument]
    return found
