"""BatchNorms that cannot be folded, and average pools, become depthwise convolutions.

Per channel a norm (of DenseNet's BN-ReLU-Conv) is y = g x + b: a 1x1 convolution, for which integer
runtimes have a kernel. With int8 weights per channel the gains are exact: each code is +-127. ONNX
Runtime's integer average pool is 30 times slower than its float one; its depthwise convolution is
not. Equal weights 1/k are one int8 code, so nothing is lost where every window has the same
divisor: no padding, or padding that counts.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.fold_batch_norm import fold_statistics
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import add_parameters, clone_as, ints

aten = torch.ops.aten


def _is_unfolded_norm(node: fx.Node) -> bool:
    constants = node.args[1:5]
    return (
        node.target is aten.batch_norm.default
        and G.rank(node) in (3, 4, 5)
        and all(n is None or (isinstance(n, fx.Node) and n.op == "get_attr") for n in constants)
    )


def _norm_as_conv(module: fx.GraphModule, norm: fx.Node, _: bool) -> None:
    channels, n = int(G.shape(norm)[1]), G.rank(norm) - 2
    constants: list[Any] = [
        G.tensor(module, c) if isinstance(c, fx.Node) else None for c in norm.args[1:5]
    ]
    eps = norm.args[7]
    assert isinstance(eps, float)

    def fold(gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
        one = mean.new_ones(channels, *[1] * (n + 1))
        return fold_statistics(one, None, gamma, beta, mean, variance, eps)

    replace_by_depthwise(module, norm, norm.args[0], *G.computed(fold, *constants))


def replace_by_depthwise(
    module: fx.GraphModule, node: fx.Node, x: Any, weight: torch.Tensor, bias: torch.Tensor
) -> None:
    """Replace a call by a depthwise 1x1 convolution of x, with a weight [C, 1, 1, ...]."""
    n = G.rank(node) - 2
    stored = add_parameters(module, G.name_of(node), weight=weight, bias=bias)
    args = (x, *stored, [1] * n, [0] * 2 * n, [1] * n, len(weight))
    G.replace(node, clone_as(node, torch_ops.conv, args))


batch_norm_as_conv = pattern_pass(
    "batch_norm_as_conv",
    _is_unfolded_norm,
    _norm_as_conv,
    "a BatchNorm that cannot be folded runs in integers as a depthwise 1x1 convolution",
)


def _has_equal_windows(node: fx.Node) -> bool:
    if node.target is not torch_ops.average_pool:
        return False
    ceil_mode, counted, divisor = node.args[4:7]
    return not ((any(G.items(node, 3)) and not counted) or ceil_mode or divisor is not None)


def _pool_as_conv(module: fx.GraphModule, pool: fx.Node, _: bool) -> None:
    rank = G.rank(pool) - 2
    kernel, stride, padding = (ints(pool.args[i], rank) for i in (1, 2, 3))
    channels, name = int(G.shape(pool)[1]), G.name_of(pool)
    weight = torch.full((channels, 1, *kernel), 1.0 / prod(kernel), dtype=torch.float32)
    (stored,) = add_parameters(module, name, weight=weight)
    args = (pool.args[0], stored, None, stride, padding * 2, [1] * rank, channels)
    G.replace(pool, clone_as(pool, torch_ops.conv, args))


average_pool_as_conv = pattern_pass(
    "average_pool_as_conv",
    _has_equal_windows,
    _pool_as_conv,
    "the integer average pool is far slower than a depthwise convolution with weights 1/k",
)
