"""Makes calls in place during calibration, where their input has no other reader.

A ReLU or a residual add can overwrite the output of the layer before it. That saves about 10 % of
the forward pass of a large network, whose activations do not fit the cache.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.ops import row_of, rows

aten = torch.ops.aten

_ALLOCATING = {  # their results share no memory
    aten.add.Tensor,
    aten.linear.default,
    aten.mul.Tensor,
    torch_ops.conv,
    torch_ops.conv_transpose,
    *(row.in_place for row in rows() if row.in_place is not None),
}


def use_in_place_operators(module: fx.GraphModule) -> None:
    """Replace calls by their in-place form where no value changes; edits the graph.

    Modules between a layer and such a call have to return their input, as points and probes do.
    """
    for node in G.calls(module.graph):
        row = row_of(node)
        if row is not None and row.in_place is not None and _is_reusable(node.args[0], node):
            node.target = row.in_place
    module.recompile()


def _is_reusable(read: object, by: fx.Node) -> bool:
    """Return whether a value is new memory with one reader, of the result's size and dtype."""
    while isinstance(read, fx.Node) and read.op == "call_module" and len(read.users) == 1:
        read = read.args[0]
    return (
        isinstance(read, fx.Node)
        and read.target in _ALLOCATING
        and len(read.users) == 1
        and G.same_sizes(G.shape(read), G.shape(by))
        and G.value(read).dtype == G.value(by).dtype
    )
