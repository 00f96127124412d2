"""Clamps behind what has no kernel that clamps get one in front of them.

A relu of a tensor that has other readers, too, of an input or of a pool stays in float: no kernel
takes it. One does take a relu of the product with 1, whose code is exact. A clamp from another
number is one from 0 of what is moved there, and back.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops import Role, row_of
from qtool.core.types import Bounds
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import add_parameters, clone_as, insert_before

aten = torch.ops.aten
_MUL, _ADD = aten.mul.Tensor, aten.add.Tensor
_CLAMPING = frozenset({"add", "mul", "matmul", "concat"})
"""Keys of operators without weights whose kernels clamp."""


def _match(node: fx.Node) -> Bounds | None:
    row, source = row_of(node), node.args[0] if node.args else None
    if row is None or row.role is not Role.CLIP or not isinstance(source, fx.Node):
        return None
    low, _ = bounds = row.bounds(node)
    if low is None or source.op == "get_attr":
        return None
    layer = row_of(source) if source.op == "call_function" else None
    clamps = layer is not None and (layer.weight is not None or layer.key in _CLAMPING)
    return None if low == 0 and clamps and len(source.users) == 1 else bounds


def _rewrite(module: fx.GraphModule, node: fx.Node, bounds: Bounds) -> None:
    low, high = bounds
    assert low is not None
    values = {"one": 1.0} if low == 0 else {"down": -low, "up": low}
    stored = {key: torch.tensor([value]) for key, value in values.items()}
    first, *last = add_parameters(module, G.name_of(node), **stored)
    x = insert_before(node, _ADD if last else _MUL, (node.args[0], first), "moved")
    if not last:
        G.replace(node, clone_as(node, node.target, (x, *node.args[1:])))
        return
    ends = (0, None if high is None else high - low)
    x = insert_before(node, aten.clamp.default, (x, *ends), "cut")
    G.replace(node, clone_as(node, _ADD, (x, *last)))


unfused_clamps = pattern_pass(
    "unfused_clamps",
    _match,
    _rewrite,
    "a clamp runs in integers as a part of the kernel in front of it",
)
