"""Data movement: reshapes, slices, concatenations, pads; and resizes, most of which compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool.core.graph import torch_ops
from qtool.core.ops.row import Op, Role

aten = torch.ops.aten


def _padded_codes(node: fx.Node, codes: fx.Node, zero: int) -> tuple[Any, tuple[Any, ...]]:
    return torch_ops.pad_codes, (codes, node.args[1], zero)


MOVES = (
    Op(key="concat", targets=(aten.cat.default,), role=Role.JOIN),
    Op(
        key="pad",
        targets=(aten.constant_pad_nd.default,),
        role=Role.PASS,
        on_codes=_padded_codes,
    ),
    Op(
        key="pass",
        role=Role.PASS,
        targets=(
            aten.reshape.default,
            aten.flatten.using_ints,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.unsqueeze.default,
            aten.permute.default,
            aten.transpose.int,
            aten.slice.Tensor,
            aten.select.int,
            aten.flip.default,
            aten.expand.default,
            aten.repeat.default,
            aten.tile.default,
            aten.upsample_nearest2d.default,
            aten.pixel_shuffle.default,
            aten.squeeze.dims,
            aten.index_select.default,
            aten.upsample_nearest2d.vec,
            aten._upsample_nearest_exact2d.vec,
        ),
    ),
)
