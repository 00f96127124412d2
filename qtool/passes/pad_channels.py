"""A convolution on three input channels gets a fourth one of zeros.

ONNX Runtime's fast integer convolution takes channels in fours; on an RGB image it falls back to a
slow one. The added weights are zero, so the result is the same to the last bit.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import add_parameters, clone_as

aten = torch.ops.aten
FOURS = 4


def _applies(node: fx.Node) -> bool:
    if node.target is not torch_ops.conv or node.args[6] != 1:
        return False
    source, weight = node.args[0], node.args[1]
    return (
        isinstance(source, fx.Node)
        and source.op == "placeholder"
        and isinstance(weight, fx.Node)
        and weight.op == "get_attr"
        and int(G.shape(weight)[1]) == FOURS - 1
        and int(G.shape(weight)[0]) % 16 == 0
    )


def _rewrite(module: fx.GraphModule, node: fx.Node, _: bool) -> None:
    source, weight = node.args[0], node.args[1]
    assert isinstance(weight, fx.Node)
    name, n = G.name_of(node), G.rank(node) - 2
    data = G.tensor(module, weight).detach()
    zeros = data.new_zeros(data.shape[0], 1, *data.shape[2:])
    (stored,) = add_parameters(module, name, weight=torch.cat([data, zeros], 1))
    pad = (source, [0] * 2 * n + [0, 1], 0.0)
    x = G.add_call(node, aten.constant_pad_nd.default, pad, f"{name}.pad", node)
    G.replace(node, clone_as(node, node.target, (x, stored, *node.args[2:])))


pad_channels = pattern_pass(
    "pad_channels",
    _applies,
    _rewrite,
    "the runtime's fast convolution takes channels in fours; a channel of zeros is exact",
)
