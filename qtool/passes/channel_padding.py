"""Channels of zeros in sets of tensors around depthwise convolutions.

ONNX Runtime's integer depthwise kernel computes 16 channels at a time, and the rest one by one:
there a channel takes two to three times as long. Zero filters write channels that zero columns of
the next layer read, so no bit of another tensor changes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx
from torch.fx.node import Argument

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.channel_sets import ChannelSet, channel_axis, channel_sets

_RESHAPE = torch.ops.aten.reshape.default


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
            args[i] = _repeated(module, each, along, count)
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


def _repeated(module: fx.GraphModule, node: fx.Node, axis: int, count: int) -> fx.Node:
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
