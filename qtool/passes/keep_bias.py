"""A linear layer without a bias in front of a reshape gets a bias of the smallest normal number.

OpenVINO moves the dequantization of a layer behind a reshape that follows, with the channels'
scales along the wrong dimension: it computes wrong results where sizes fit, and fails to load the
file where they do not. An addition in between prevents that; one of zeros is removed first. The
smallest normal number changes no result but zero.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import add_parameters, clone_as

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
    if bias.op != "get_attr" or module is None:
        return False
    return not G.read_values(G.tensor(module, bias)).any()


def _reshaped(node: fx.Node) -> bool:
    """Return whether `node`, or an elementwise function of it (a ReLU), is reshaped."""
    elementwise = [
        user
        for user in node.users
        if len(user.all_input_nodes) == 1
        and isinstance(value := user.meta.get("val"), torch.Tensor)
        and value.dim() == 2
    ]
    return any(u.target is aten.reshape.default for u in node.users) or any(
        map(_reshaped, elementwise)
    )


def _rewrite(module: fx.GraphModule, node: fx.Node, _: bool) -> None:
    value = G.value(node)
    tiny = torch.full((int(value.shape[1]),), torch.finfo(value.dtype).tiny)
    (bias,) = add_parameters(module, G.name_of(node), bias=tiny)
    G.replace(node, clone_as(node, aten.linear.default, (*node.args[:2], bias)))


keep_bias = pattern_pass(
    "hold_bias",
    _applies,
    _rewrite,
    "keeps the runtime from moving a dequantization behind a reshape",
)
