"""Channels that suit the runtime's convolutions: narrow groups are merged, three channels padded.

ONNX Runtime runs a grouped integer convolution group by group, as a matrix product with a short
sum: with 32 groups of 4 channels it takes four times as long as the float one. Added zeros change
nothing, to the last bit. Measured for 13 shapes of ResNeXt and RegNet: of the widths that the
number of groups allows, 32 to 48 channels are the fastest, up to four times faster than the
original groups; from 64 on the zeros cost more than they save. The kernel is then as fast as the
float one or faster, except with a prime number of groups, which cannot be merged (13 of 8).

Its fast integer convolution takes channels in fours; on an RGB image it falls back to a slow one. A
fourth channel with zero weights changes nothing, to the last bit, either. A float convolution takes
three as they are: where a layer stays in float, its file has no fourth one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.fold_batch_norm import fold_statistics, why_not_folded
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import add_parameters, clone_as, ints

MAX_WIDTH = 48  # channels per group


def _factor(node: fx.Node) -> int | None:
    """Return how many groups fit into one of MAX_WIDTH channels; None if only one does."""
    if node.target is not torch_ops.conv or G.rank(node) != 4:
        return None
    weight, groups = node.args[1], node.args[6]
    if not isinstance(weight, fx.Node) or weight.op != "get_attr" or not isinstance(groups, int):
        return None
    width = int(G.shape(weight)[1])
    if width == 1:  # depthwise convolutions have another kernel
        return None
    factors = (f for f in range(2, groups + 1) if groups % f == 0 and f * width <= MAX_WIDTH)
    return max(factors, default=None)


def block_diagonal(weight: torch.Tensor, groups: int, factor: int) -> torch.Tensor:
    """Return a weight [out, in / groups, ...] for `groups / factor` groups: [out, factor * ...]."""
    outputs, width = weight.shape[:2]
    blocks = weight.reshape(groups // factor, factor, outputs // groups, width, *weight.shape[2:])
    wide = weight.new_zeros(*blocks.shape[:3], factor, *blocks.shape[3:])
    for k in range(factor):
        wide[:, k, :, k] = blocks[:, k]
    return wide.reshape(outputs, factor * width, *weight.shape[2:])


def _merge(module: fx.GraphModule, node: fx.Node, factor: int) -> None:
    weight, groups = G.source(node, 1), G.integer(node, 6)
    (merged,) = G.computed(lambda w: [block_diagonal(w, groups, factor)], G.tensor(module, weight))
    (stored,) = add_parameters(module, G.name_of(node), weight=merged)
    args = (node.args[0], stored, *node.args[2:6], groups // factor)
    new = clone_as(node, node.target, args)
    new.meta[G.MERGED_GROUPS] = factor
    G.replace(node, new)


merge_groups = pattern_pass(
    "merge_groups",
    _factor,
    _merge,
    "narrow groups of an integer convolution are slow; zeros between them cost less",
)


aten = torch.ops.aten
FOURS = 4


def _has_three_channels(node: fx.Node) -> bool:
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


def _with_zeros(weight: torch.Tensor) -> list[torch.Tensor]:
    zeros = weight.new_zeros(weight.shape[0], 1, *weight.shape[2:])
    return [torch.cat([weight, zeros], 1)]


def _pad(module: fx.GraphModule, node: fx.Node, _: bool) -> None:
    source, weight = G.source(node), G.source(node, 1)
    name, n = G.name_of(node), G.rank(node) - 2
    (padded,) = G.computed(_with_zeros, G.tensor(module, weight))
    (stored,) = add_parameters(module, name, weight=padded)
    pad = (source, [0] * 2 * n + [0, 1], 0.0)
    x = G.add_call(node, aten.constant_pad_nd.default, pad, f"{name}.pad", node)
    G.replace(node, clone_as(node, node.target, (x, stored, *node.args[2:])))


pad_channels = pattern_pass(
    "pad_channels",
    _has_three_channels,
    _pad,
    "the runtime's fast convolution takes channels in fours; a channel of zeros is exact",
)


def added_channels(node: fx.Node) -> int:
    """Return how many channels of zeros are padded behind those of a float convolution's input."""
    pad = node.args[0] if node.target is torch_ops.conv and node.args[6] == 1 else None
    if not isinstance(pad, fx.Node) or pad.target is not aten.constant_pad_nd.default:
        return 0
    *others, begin, end = [*G.items(pad, 1)]
    zeros = not G.argument(pad, 2, "value", 0) and not any(others)
    of_channels = len(others) == 2 * (G.rank(node) - 2) and begin == 0 and isinstance(end, int)
    return max(end, 0) if zeros and of_channels and _stored(node) is not None else 0


def _stored(node: fx.Node) -> fx.Node | None:
    """Return the stored weights of a float convolution, floats or codes."""
    weight = node.args[1]
    if isinstance(weight, fx.Node) and weight.target is torch_ops.dequantize_once:
        weight = weight.args[0]
    return weight if isinstance(weight, fx.Node) and weight.op == "get_attr" else None


def _unpad(module: fx.GraphModule, node: fx.Node, count: int) -> None:
    pad, weight, stored = G.source(node), G.source(node, 1), _stored(node)
    assert stored is not None
    (narrow,) = G.computed(lambda w: [w[:, :-count].contiguous()], G.tensor(module, stored))
    first, is_codes = next(iter(module.graph.nodes)), stored is not weight
    data = narrow if is_codes else G.as_parameter(narrow)
    new = G.add_tensor(module, first, data, G.name_of(stored))
    if is_codes:
        args = (new, *weight.args[1:])
        new = G.add_call(node, weight.target, args, G.name_of(weight), node)
    G.replace(node, clone_as(node, node.target, (pad.args[0], new, *node.args[2:])))


unpad_channels = pattern_pass("unpad_channels", added_channels, _unpad)


# A channel shuffle (reshape, transpose, reshape) becomes one gather of channels.


def _groups(last: fx.Node) -> int | None:
    """Return the groups if `last` ends [N,C,..] -> [N,g,C/g,..] -> swap 1, 2 -> [N,C,..]."""
    swap = last.args[0] if last.target is aten.reshape.default else None
    if not isinstance(swap, fx.Node) or swap.target is not aten.transpose.int:
        return None
    first = swap.args[0]
    if not isinstance(first, fx.Node) or first.target is not aten.reshape.default:
        return None
    source = first.args[0]
    if not isinstance(source, fx.Node) or len(first.users) != 1 or len(swap.users) != 1:
        return None
    before, split, after = (G.shape(n) for n in (source, first, last))
    if len(before) < 3 or len(split) != len(before) + 1 or len(after) != len(before):
        return None
    rank = len(split)
    axes = sorted(G.integer(swap, i) % rank for i in (1, 2))
    same = G.same_sizes(before, after) and G.same_sizes(
        (split[0], *split[3:]), before[:1] + before[2:]
    )
    if axes != [1, 2] or not same or not isinstance(split[1], int):
        return None
    return int(split[1])


def _rewrite(module: fx.GraphModule, last: fx.Node, groups: int) -> None:
    source = G.source(G.source(G.source(last)))
    channels, name = int(G.shape(source)[1]), G.name_of(last)
    order = torch.arange(channels).reshape(groups, -1).t().reshape(-1)
    index = G.add_tensor(module, next(iter(module.graph.nodes)), order, f"{name}.order")
    args = (source, 1, index)
    G.replace(last, G.add_call(last, aten.index_select.default, args, name, last))


channel_shuffle = pattern_pass(
    "channel_shuffle",
    _groups,
    _rewrite,
    "one gather of channels replaces two reshapes and a transpose",
)


# BatchNorms that cannot be folded, and average pools, become depthwise convolutions.
#
# Per channel a norm (of DenseNet's BN-ReLU-Conv) is y = g x + b: a 1x1 convolution, for which
# integer runtimes have a kernel. With int8 weights per channel the gains are exact: each code is
# +-127. ONNX Runtime's integer average pool is 30 times slower than its float one; its depthwise
# convolution is not. Equal weights 1/k are one int8 code, so nothing is lost where every window has
# the same divisor: no padding, or padding that counts.


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


def _not_folded(module: fx.GraphModule) -> str:
    reasons = Counter(map(why_not_folded, filter(_is_unfolded_norm, G.calls(module.graph))))
    return "; ".join(f"{count}x {reason}" for reason, count in reasons.items())


batch_norm_as_conv = replace(
    pattern_pass(
        "batch_norm_as_conv",
        _is_unfolded_norm,
        _norm_as_conv,
        "a BatchNorm that cannot be folded runs in integers as a depthwise 1x1 convolution",
    ),
    detail=_not_folded,
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
