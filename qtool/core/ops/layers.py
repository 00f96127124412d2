"""Convolutions and linear layers, and the forms of linear layers with integer weights."""

from __future__ import annotations

import torch

from qtool.core.graph import torch_ops
from qtool.core.ops import mac_counts
from qtool.core.ops.row import Op
from qtool.core.schemes import When

aten = torch.ops.aten

LAYERS = (
    Op(
        key="conv",
        targets=(torch_ops.conv,),
        weight=1,
        bias=2,
        macs=mac_counts.layer,
    ),
    Op(
        key="conv_transpose",
        targets=(torch_ops.conv_transpose,),
        weight=1,
        bias=2,
        channel_axis=1,
        macs=mac_counts.transposed,
    ),
    Op(  # inputs are flat: see passes/flatten_linear.py
        key="linear",
        targets=(aten.linear.default,),
        weight=1,
        bias=2,
        supported_modes=frozenset({When.DYNAMIC, When.NEVER}),
        from_blocks=torch_ops.linear_nbits,
        macs=mac_counts.layer,
    ),
)
