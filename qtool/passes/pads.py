"""Pads become part of the layer or pool behind them, or a form that a runtime has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.channel_sets import ChannelSet, channel_axis, channel_sets
from qtool.passes.graph_pass import GraphPass, first_match, pattern_pass
from qtool.passes.rewrite_rules import clone_as, insert_before

aten = torch.ops.aten
_LOW = -65504.0  # the lowest float16, often written for -inf
_RESHAPE = torch.ops.aten.reshape.default


# Zero padding of the spatial dimensions is folded into the convolution behind it.


def _foldable(conv: fx.Node) -> bool:
    pad = conv.args[0] if conv.target is torch_ops.conv else None
    if not isinstance(pad, fx.Node) or pad.target is not aten.constant_pad_nd.default:
        return False
    widths = G.items(pad, 1)
    spatial = 2 * (G.rank(conv) - 2)
    fill = G.argument(pad, 2, "value", 0)
    fixed = all(isinstance(w, int) and w >= 0 for w in widths)
    return fill == 0 and len(pad.users) == 1 and fixed and not any(widths[spatial:])


def _sides(node: fx.Node) -> list[tuple[int, int]]:
    """Return (begin, end) of each spatial dimension of the pad that a convolution or pool reads;
    ATen pads from the last dimension."""
    n = G.rank(node) - 2
    widths = (G.integers(G.source(node), 1) + [0] * (2 * n))[: 2 * n]
    return list(zip(widths[::2], widths[1::2], strict=True))[::-1]


def _fold(module: fx.GraphModule) -> int:
    count = 0
    while (conv := _leftover(module)) is not None:  # one by one: a pad may follow another
        pad = G.source(conv)
        sides = _sides(conv)
        added = [begin for begin, _ in sides] + [end for _, end in sides]
        pads = [a + b for a, b in zip(G.integers(conv, 4), added, strict=True)]
        args = (pad.args[0], *conv.args[1:4], pads, *conv.args[5:])
        folded = clone_as(conv, conv.target, args)
        earlier = conv.meta.get(G.FOLDED_PAD, [0] * len(added))
        folded.meta[G.FOLDED_PAD] = [a + b for a, b in zip(earlier, added, strict=True)]
        G.replace(conv, folded)
        module.graph.erase_node(pad)
        count += 1
    return count


_leftover = first_match(_foldable)
fold_pad = GraphPass("fold_pad", _fold, _leftover)


# A max pool behind a pad with -inf takes the padding itself, or a repeated border.
#
# Padding with a value below all others never decides a maximum, but no range of codes contains it.
# A pool has such padding of its own, equal at both ends, and a window that hangs over the end
# contains only the values inside. Where neither fits, the border is repeated: each window that
# reaches over the border contains the border, too, so that its maximum is the same.


def _is_low_pad(pool: fx.Node) -> bool:
    pad = pool.args[0] if pool.target is torch_ops.max_pool else None
    if not isinstance(pad, fx.Node) or pad.target is not aten.constant_pad_nd.default:
        return False
    arguments: Any = pool.args
    _, kernel, _, padding, dilation, ceil = arguments
    widths, fill = G.items(pad, 1), G.argument(pad, 2, "value", 0)
    if not all(isinstance(w, int) and w >= 0 for w in widths) or any(widths[2 * len(kernel) :]):
        return False
    # with a dilation a window may reach over the border and leave the border itself out
    reach = [k if d == 1 else 1 for k, d in zip(kernel, dilation, strict=True)]
    within = all(max(side) < r for side, r in zip(_sides(pool), reach, strict=True))
    return fill <= _LOW and within and not any(padding) and not ceil


def _without_pad(pool: fx.Node) -> fx.Node:
    arguments: Any = pool.args
    pad, kernel, stride, _, dilation, _ = arguments
    x, sides = pad.args[0], _sides(pool)
    begins = [begin for begin, _ in sides]
    if all(map(_allowed, G.shape(x)[2:], begins, kernel, dilation)):
        for ceil in (False, True):
            new = insert_before(pool, pool.target, (x, kernel, stride, begins, dilation, ceil))
            if G.same_sizes(G.shape(new), G.shape(pool)):
                return new  # the same windows
            new.graph.erase_node(new)
    for axis, (begin, end) in enumerate(sides, start=2):
        x = _repeated(pool, x, axis, begin, end)
    return insert_before(pool, pool.target, (x, kernel, stride, [0] * len(sides), dilation, False))


def _allowed(size: int | torch.SymInt, begin: int, kernel: int, dilation: int) -> bool:
    """Return whether a pool may pad by `begin` at both ends of an axis."""
    holds = type(size) is not int or size + 2 * begin > dilation * (kernel - 1)
    return 2 * begin <= kernel and holds


def _repeated(pool: fx.Node, x: Argument, axis: int, begin: int, end: int) -> Any:
    if not begin and not end:
        return x
    first = (
        insert_before(pool, aten.slice.Tensor, (x, axis, 0, 1), f"begin{axis}") if begin else None
    )
    last = insert_before(pool, aten.slice.Tensor, (x, axis, -1), f"end{axis}") if end else None
    return insert_before(
        pool, aten.cat.default, ([first] * begin + [x] + [last] * end, axis), f"pad{axis}"
    )


max_pool_pad = pattern_pass(
    "low_pad", _is_low_pad, lambda _, pool, __: G.replace(pool, _without_pad(pool))
)


# Channels of zeros in sets of tensors around depthwise convolutions.
#
# ONNX Runtime's integer depthwise kernel computes 16 channels at a time, and the rest one by one:
# there a channel takes two to three times as long. Zero filters write channels that zero columns of
# the next layer read, so no bit of another tensor changes.


def widen_channels(module: fx.GraphModule, widths: Mapping[str, int]) -> None:
    """Add channels of zeros around depthwise convolutions, in place.

    Args:
        module: a float graph, or one about to be written.
        widths: name of a depthwise convolution -> its channels with those of zeros.
    """
    if not widths:
        return
    for each in list(channel_sets(module.graph)):
        width = max(widths.get(G.name_of(n), 0) for n in each.depthwise)
        if width > each.channels:
            _widen(module, each, width - each.channels)
    G.finish(module)


def _widen(module: fx.GraphModule, each: ChannelSet, count: int) -> None:
    for node in (*each.writers, *each.depthwise):
        _set(node, 1, _padded(module, G.source(node, 1), 0, count))
        if isinstance(node.args[2] if len(node.args) > 2 else None, fx.Node):
            _set(node, 2, _padded(module, G.source(node, 2), 0, count))
    for node in each.depthwise:
        _set(node, 6, each.channels + count)
    for node in each.readers:
        _set(node, 1, _padded(module, G.source(node, 1), 1, count))
    for node, index in each.constants:
        operand = G.source(node, index)
        axis = channel_axis(node, operand)
        assert axis is not None
        _set(node, index, _padded(module, operand, axis, count))
    for node in each.nodes:
        if node.target is _RESHAPE and G.items(node, 1)[1] == each.channels:
            first, _, *rest = G.items(node, 1)
            _set(node, 1, [first, each.channels + count, *rest])
    changed = {*each.writers, *each.nodes}
    for node in module.graph.nodes:
        if node in changed:
            G.infer(node)


def _set(node: fx.Node, index: int, value: Argument) -> None:
    node.args = (*node.args[:index], value, *node.args[index + 1 :])


def _padded(module: fx.GraphModule, operand: fx.Node, axis: int, count: int) -> fx.Node:
    """Return a stored operand, floats or dequantized codes, with zeros behind its channels."""
    if operand.op == "get_attr":
        return _stored(module, operand, axis, count)
    codes, scale, *rest = operand.args
    assert isinstance(codes, fx.Node)
    assert isinstance(scale, fx.Node)
    zero = rest[0] if rest and isinstance(rest[0], fx.Node) else None
    args: list[Argument] = [_stored(module, codes, axis, count, zero), scale, *rest]
    for i, each in enumerate((scale, zero), start=1):
        along = axis if operand.target is torch_ops.dequantize_once else 0
        by_channel = operand.target is torch_ops.dequantize_once or operand.args[3] == axis
        if each is not None and by_channel and G.rank(each) and G.shape(each)[along] > 1:
            args[i] = _repeated_channels(module, each, along, count)
    name = G.name_of(operand)
    return G.add_call(operand, operand.target, args, name, operand)


def _stored(
    module: fx.GraphModule, node: fx.Node, axis: int, count: int, zero: fx.Node | None = None
) -> fx.Node:
    """Return a stored tensor with `count` more zeros along an axis; for codes, the code of zero."""
    code = 0
    if zero is not None and bool((points := G.tensor(module, zero)).any()):
        assert points.numel() == 1, "codes by channel are symmetric"
        code = int(points)

    def pad(t: torch.Tensor) -> list[torch.Tensor]:
        shape = [count if d == axis else size for d, size in enumerate(t.shape)]
        return [torch.cat([t, t.new_full(shape, code)], axis)]

    return _added(module, node, *G.computed(pad, G.tensor(module, node)))


def _repeated_channels(module: fx.GraphModule, node: fx.Node, axis: int, count: int) -> fx.Node:
    """Return a stored tensor whose last slice is repeated: a scale of zeros may have any value."""

    def repeat(t: torch.Tensor) -> list[torch.Tensor]:
        last = t.narrow(axis, t.shape[axis] - 1, 1)
        return [torch.cat([t, *[last] * count], axis)]

    return _added(module, node, *G.computed(repeat, G.tensor(module, node)))


def _added(module: fx.GraphModule, node: fx.Node, data: torch.Tensor) -> fx.Node:
    first = next(iter(module.graph.nodes))
    stored = (
        G.as_parameter(data) if isinstance(G.tensor(module, node), torch.nn.Parameter) else data
    )
    return G.add_tensor(module, first, stored, G.name_of(node))
