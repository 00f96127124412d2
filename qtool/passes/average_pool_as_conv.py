"""An average pool becomes a depthwise convolution with equal weights.

ONNX Runtime's integer average pool is 30 times slower than its float one; its depthwise
convolution is not. The weights 1/k are one int8 code, so nothing is lost. Matches only where every
window has the same divisor: no padding, or padding that counts.
"""

from __future__ import annotations

from math import prod

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import add_parameters, clone_as, ints


def _applies(node: fx.Node) -> bool:
    if node.target is not torch_ops.average_pool:
        return False
    _, _, _, padding, ceil_mode, counted, divisor = node.args
    assert isinstance(padding, list | tuple)
    return not ((any(padding) and not counted) or ceil_mode or divisor is not None)


def _rewrite(module: fx.GraphModule, pool: fx.Node, _: bool) -> None:
    rank = G.rank(pool) - 2
    kernel, stride, padding = (ints(pool.args[i], rank) for i in (1, 2, 3))
    channels, name = int(G.shape(pool)[1]), G.name_of(pool)
    weight = torch.full((channels, 1, *kernel), 1.0 / prod(kernel))
    (stored,) = add_parameters(module, name, weight=weight)
    args = (pool.args[0], stored, None, stride, padding * 2, [1] * rank, channels)
    G.replace(pool, clone_as(pool, torch_ops.conv, args))


average_pool_as_conv = pattern_pass(
    "average_pool_as_conv",
    _applies,
    _rewrite,
    "the integer average pool is far slower than a depthwise convolution with weights 1/k",
)
