"""Convolutions on three channels get a fourth one of zeros.

ONNX Runtime's fast integer convolution takes channels in fours; on an RGB image it falls back to a
slow one. The added weights are zero, so that the result is the same to the last bit.
"""

from __future__ import annotations

import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import GraphPass

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


def _rewrite(module: fx.GraphModule) -> int:
    found = [n for n in G.calls(module.graph) if _applies(n)]
    for node in found:
        source, weight = node.args[0], node.args[1]
        assert isinstance(weight, fx.Node)
        name, n = G.name_of(node), G.rank(node) - 2
        data = G.tensor(module, weight).detach()
        zeros = data.new_zeros(data.shape[0], 1, *data.shape[2:])
        padded, first = nn.Parameter(torch.cat([data, zeros], 1)), next(iter(module.graph.nodes))
        w = G.add_tensor(module, first, padded, f"{name}.weight")
        widths = [0] * 2 * n + [0, 1]
        x = G.add_call(
            node, aten.constant_pad_nd.default, (source, widths, 0.0), f"{name}.pad", node
        )
        G.replace(node, G.add_call(node, node.target, (x, w, *node.args[2:]), name, node, node))
    return len(found)


pad_channels = GraphPass(
    "pad_channels",
    _rewrite,
    lambda m: next((n for n in G.calls(m.graph) if _applies(n)), None),
    reason="the runtime's fast convolution takes channels in fours; a zero channel is exact",
)
