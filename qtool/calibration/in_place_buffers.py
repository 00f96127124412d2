"""Makes calls in place during calibration, where their input has no other reader.

A ReLU or a residual add can overwrite the output of the layer before it. That saves about 10 % of
the forward pass of a large network, whose activations do not fit the cache.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops

aten = torch.ops.aten

_IN_PLACE = {  # same kernels, same values
    aten.add.Tensor: aten.add_.Tensor,
    aten.clamp.default: aten.clamp_.default,
    aten.hardswish.default: aten.hardswish_.default,
    aten.leaky_relu.default: aten.leaky_relu_.default,
    aten.relu.default: aten.relu_.default,
}
_ALLOCATING = {  # their results share no memory
    aten.add.Tensor,
    aten.linear.default,
    aten.mul.Tensor,
    torch_ops.conv,
    torch_ops.conv_transpose,
    *_IN_PLACE.values(),
}


def use_in_place_operators(module: fx.GraphModule) -> None:
    """Replace calls by their in-place form where no value changes; edits the graph.

    Modules between a layer and such a call have to return their input, as points and probes do.
    """
    for node in G.calls(module.graph):
        if node.target in _IN_PLACE and _is_reusable(node.args[0], node):
            node.target = _IN_PLACE[node.target]
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
