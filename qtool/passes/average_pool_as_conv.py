"""An average pool as a depthwise convolution with equal weights.

ONNX Runtime's integer average pool is 30 times slower than its float one; its depthwise
convolution is not. The weights 1/k are one int8 code, so nothing is lost. Only where every window
has the same divisor: no padding, or padding that counts.
"""

from __future__ import annotations

from math import prod

import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import GraphPass
from qtool.passes.rewrite_rules import ints


def _applies(node: fx.Node) -> bool:
    if node.target is not torch_ops.average_pool:
        return False
    _, _, _, padding, ceil_mode, counted, divisor = node.args
    assert isinstance(padding, list | tuple)
    return not ((any(padding) and not counted) or ceil_mode or divisor is not None)


def _rewrite(module: fx.GraphModule) -> int:
    found = [n for n in G.calls(module.graph) if _applies(n)]
    for pool in found:
        rank = G.rank(pool) - 2
        kernel, stride, padding = (ints(pool.args[i], rank) for i in (1, 2, 3))
        channels = int(G.shape(pool)[1])
        weight = nn.Parameter(torch.full((channels, 1, *kernel), 1.0 / prod(kernel)))
        name, first = G.name_of(pool), next(iter(module.graph.nodes))
        w = G.add_tensor(module, first, weight, f"{name}.weight")
        args = (pool.args[0], w, None, stride, padding * 2, [1] * rank, channels)
        G.replace(pool, G.add_call(pool, torch_ops.conv, args, name, pool, pool))
    return len(found)


def _leftover(module: fx.GraphModule) -> fx.Node | None:
    return next((n for n in G.calls(module.graph) if _applies(n)), None)


average_pool_as_conv = GraphPass(
    "average_pool_as_conv",
    _rewrite,
    _leftover,
    reason="the integer average pool is far slower than a depthwise convolution with weights 1/k",
)
