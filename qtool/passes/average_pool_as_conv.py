"""An average pool as a depthwise convolution with equal weights.

ONNX Runtime's integer average pool is 30 times slower than its float one; its depthwise
convolution is not. The weights 1/k are one int8 code, so nothing is lost. Only where every window
has the same divisor: no padding, or padding that counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import fx, nn

from qtool import graph as G
from qtool.graph import torch_ops
from qtool.passes.infra import GraphPass
from qtool.passes.rules import ints

__all__ = ["average_pool_as_conv"]

aten = torch.ops.aten


_POOLS: Mapping[Any, int] = {
    aten.avg_pool1d.default: 1,
    aten.avg_pool2d.default: 2,
    aten.avg_pool3d.default: 3,
}


def _rank(pool: fx.Node) -> int:
    return _POOLS[pool.target]


def _applies(node: fx.Node) -> bool:
    if node.target not in _POOLS:
        return False
    padded = any(ints(G.argument(node, 3, "padding", 0), _rank(node)))
    return (
        not (padded and not G.argument(node, 5, "count_include_pad", True))
        and not G.argument(node, 4, "ceil_mode", False)
        and G.argument(node, 6, "divisor_override") is None
        and G.rank(node) == _rank(node) + 2
    )


def _rewrite(module: fx.GraphModule) -> int:
    found = [n for n in G.calls(module.graph) if _applies(n)]
    for pool in found:
        rank = _rank(pool)
        kernel = ints(pool.args[1], rank)
        stride = ints(G.argument(pool, 2, "stride") or kernel, rank)
        pads = ints(G.argument(pool, 3, "padding", 0), rank) * 2
        channels = int(G.shape(pool)[1])
        weight = nn.Parameter(torch.full((channels, 1, *kernel), 1.0 / prod(kernel)))
        name, first = G.name_of(pool), next(iter(module.graph.nodes))
        w = G.add_tensor(module, first, weight, f"{name}.weight")
        args = (pool.args[0], w, None, stride, pads, [1] * rank, channels)
        G.replace(pool, G.add_call(pool, torch_ops.conv, args, name, pool))
    return len(found)


def _leftover(module: fx.GraphModule) -> fx.Node | None:
    return next((n for n in G.calls(module.graph) if _applies(n)), None)


average_pool_as_conv = GraphPass(
    "average_pool_as_conv",
    _rewrite,
    _leftover,
    reason="the integer average pool is far slower than a depthwise convolution with weights 1/k",
)
