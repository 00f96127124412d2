"""A BatchNorm that cannot be folded (DenseNet's BN-ReLU-Conv) becomes a depthwise 1x1 convolution.

Per channel y = g x + b is a convolution with one weight per channel, for which integer runtimes
have a kernel. With int8 weights per channel the gains are exact: each channel's code is +-127.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.fold_batch_norm import fold_statistics
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import add_parameters, clone_as

aten = torch.ops.aten


def _applies(node: fx.Node) -> bool:
    constants = node.args[1:5]
    return (
        node.target is aten.batch_norm.default
        and G.rank(node) in (3, 4, 5)
        and all(n is None or (isinstance(n, fx.Node) and n.op == "get_attr") for n in constants)
    )


def _rewrite(module: fx.GraphModule, norm: fx.Node, _: bool) -> None:
    channels, n, name = int(G.shape(norm)[1]), G.rank(norm) - 2, G.name_of(norm)
    constants: list[Any] = [
        None if c is None else G.tensor(module, c).detach()  # type: ignore[arg-type]  # a node
        for c in norm.args[1:5]
    ]
    gamma, beta, mean, variance = constants
    one, eps = torch.ones(channels, *[1] * (n + 1)), norm.args[7]
    assert isinstance(eps, float)
    weight, bias = fold_statistics(one.to(mean), None, gamma, beta, mean, variance, eps)
    stored = add_parameters(module, name, weight=weight, bias=bias)
    args = (norm.args[0], *stored, [1] * n, [0] * 2 * n, [1] * n, channels)
    G.replace(norm, clone_as(norm, torch_ops.conv, args))


batch_norm_as_conv = pattern_pass(
    "batch_norm_as_conv",
    _applies,
    _rewrite,
    "a BatchNorm that cannot be folded runs in integers as a depthwise 1x1 convolution",
)
