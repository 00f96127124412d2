"""A BatchNorm that cannot be folded (DenseNet's BN-ReLU-Conv) as a depthwise 1x1 convolution.

Per channel y = g x + b is a convolution with one weight per channel, which integer runtimes have a
kernel for; with int8 weights per channel the gains are exact, each channel's code being +-127.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.fold_batch_norm import fold_statistics
from qtool.passes.graph_pass import GraphPass

aten = torch.ops.aten


def _applies(node: fx.Node) -> bool:
    constants = node.args[1:5]
    return (
        node.target is aten.batch_norm.default
        and G.rank(node) in (3, 4, 5)
        and all(n is None or (isinstance(n, fx.Node) and n.op == "get_attr") for n in constants)
    )


def _rewrite(module: fx.GraphModule) -> int:
    found = [n for n in G.calls(module.graph) if _applies(n)]
    for norm in found:
        channels, n = int(G.shape(norm)[1]), G.rank(norm) - 2
        read: list[Any] = [
            None if c is None else G.tensor(module, c).detach()  # type: ignore[arg-type]  # a node
            for c in norm.args[1:5]
        ]
        gamma, beta, mean, variance = read
        one, eps = torch.ones(channels, *[1] * (n + 1)), norm.args[7]
        assert isinstance(eps, float)
        weight, bias = fold_statistics(one.to(mean), None, gamma, beta, mean, variance, eps)
        name, first = G.name_of(norm), next(iter(module.graph.nodes))
        w = G.add_tensor(module, first, nn.Parameter(weight), f"{name}.weight")
        b = G.add_tensor(module, first, nn.Parameter(bias), f"{name}.bias")
        args = (norm.args[0], w, b, [1] * n, [0] * 2 * n, [1] * n, channels)
        G.replace(norm, G.add_call(norm, torch_ops.conv, args, name, norm, norm))
    return len(found)


def _leftover(module: fx.GraphModule) -> fx.Node | None:
    return next((n for n in G.calls(module.graph) if _applies(n)), None)


batch_norm_as_conv = GraphPass(
    "batch_norm_as_conv",
    _rewrite,
    _leftover,
    reason="a BatchNorm without a layer to fold into is a depthwise 1x1 convolution in integers",
)
