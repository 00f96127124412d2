"""A linear layer that adds nothing before a reshape gets a bias that is almost nothing.

OpenVINO moves the dequantization of a layer behind a reshape that follows, with the scales of its
channels along the wrong dimension: where sizes fit it computes something else, where they do not it
does not load the file. An addition in between holds it; one of zeros is taken out before. The
smallest normal number changes no result but zero.
"""

from __future__ import annotations

import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.passes.graph_pass import GraphPass

aten = torch.ops.aten


def _applies(node: fx.Node) -> bool:
    if node.target is not aten.linear.default or G.rank(node) != 2:
        return False
    if not _reshaped(node):
        return False
    bias = G.argument(node, 2, "bias")
    if not isinstance(bias, fx.Node):
        return True
    module = node.graph.owning_module
    return bias.op == "get_attr" and module is not None and not G.tensor(module, bias).any()


def _reshaped(node: fx.Node) -> bool:
    """Whether it is, or what is made of it element by element: a ReLU lets scales pass."""
    alike = [
        user
        for user in node.users
        if len(user.all_input_nodes) == 1
        and isinstance(value := user.meta.get("val"), torch.Tensor)
        and value.dim() == 2
    ]
    return any(u.target is aten.reshape.default for u in node.users) or any(map(_reshaped, alike))


def _rewrite(module: fx.GraphModule) -> int:
    found = [n for n in G.calls(module.graph) if _applies(n)]
    for node in found:
        value, first = G.value(node), next(iter(module.graph.nodes))
        nothing = torch.full((int(value.shape[1]),), torch.finfo(value.dtype).tiny)
        held = G.add_tensor(module, first, nn.Parameter(nothing), f"{G.name_of(node)}.bias")
        args = (*node.args[:2], held)
        G.replace(node, G.add_call(node, aten.linear.default, args, G.name_of(node), node, node))
    return len(found)


keep_bias = GraphPass(
    "hold_bias",
    _rewrite,
    lambda m: next((n for n in G.calls(m.graph) if _applies(n)), None),
    "a dequantization that the runtime would move behind a reshape stays where it is",
)
