"""Data movement in few operators: slice, select, reshape, permute, cat, index_select, flip."""

from __future__ import annotations

import operator

import torch
from torch import fx

from qtool.core import graph as G
from qtool.passes.rewrite_rules import Rule, Rules, insert_before

aten = torch.ops.aten
OPEN_END = 2**63 - 1  # torch's end of an open slice


def _split(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Replace split, chunk and unbind by a slice (or select) for each part that is read."""
    x, parts = G.source(node), G.value(node)
    users = list(node.users)
    if any(u.target is not operator.getitem for u in users):
        return None
    unbind = node.target is aten.unbind.int
    axis = int(G.argument(node, 1 if unbind else 2, "dim", 0))
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + (1 if unbind else part.shape[axis]))
    if not all(isinstance(s, int) for s in starts):
        return None
    for user in users:
        i = user.args[1]
        assert isinstance(i, int)
        i = i % len(parts)
        target, args = (
            (aten.select.int, (x, axis, i))
            if unbind
            else (aten.slice.Tensor, (x, axis, starts[i], starts[i + 1]))
        )
        G.replace(user, insert_before(user, target, args))
    return x if not node.users else None


def _view(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Replace the single computed size of a view by -1, so that no subgraph computes a shape."""
    sizes = G.items(node, 1)
    computed = [i for i, s in enumerate(sizes) if isinstance(s, fx.Node)]
    if len(computed) != 1 or 0 in sizes:
        return None
    known = G.shape(node)[sizes.index(-1)] if -1 in sizes else 0  # view(x.size(0), -1)
    if not isinstance(known, int):
        return None
    free = [-1 if i in computed else known if s == -1 else s for i, s in enumerate(sizes)]
    return insert_before(node, aten.reshape.default, (node.args[0], free))


def _concat(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    return insert_before(node, aten.cat.default, (node.args[0], G.argument(node, 1, "dim", 0)))


def _one(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Remove a concat of one tensor, which would round the same codes twice."""
    first, *others = G.items(node, 0)
    same = isinstance(first, fx.Node) and G.value(first).dtype == G.value(node).dtype
    return first if same and not others else None


def _stack(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    axis = G.argument(node, 1, "dim", 0) % G.rank(node)
    lifted = [
        insert_before(node, aten.unsqueeze.default, (p, axis), f"unsqueeze{i}")
        for i, p in enumerate(G.sources(node))
    ]
    return insert_before(node, aten.cat.default, (lifted, axis))


def _roll(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Concatenate the end and the beginning along each axis."""
    x, shifts, axes = G.source(node), G.items(node, 1), G.argument(node, 2, "dims", [])
    sizes = [G.shape(x)[a] for a in axes]
    if not axes or not all(isinstance(s, int) for s in (*sizes, *shifts)):
        return None
    turns = [(a, size, s % size) for a, size, s in zip(axes, sizes, shifts, strict=True)]
    for axis, size, shift in turns:
        if shift:
            x = _joined(node, x, axis, [(size - shift, size), (0, size - shift)])
    return x


def _joined(node: fx.Node, x: fx.Node, axis: int, ranges: list[tuple[int, int] | None]) -> fx.Node:
    """Concatenate slices of x; None is all of x."""
    parts = [
        insert_before(node, aten.slice.Tensor, (x, axis, *ends), f"slice{axis}_{i}") if ends else x
        for i, ends in enumerate(ranges)
    ]
    return insert_before(node, aten.cat.default, (parts, axis), f"cat{axis}")


def circular_pad(node: fx.Node) -> fx.Node | None:
    """Return a circular pad as a concat of slices, one axis after the other.

    Slices move codes, and OpenVINO does not support such a Pad.
    """
    x, widths = G.source(node), G.items(node, 1)
    numbers = [w for w in widths if isinstance(w, int) and w >= 0]
    if len(numbers) != len(widths):
        return None
    for i, (begin, end) in enumerate(zip(numbers[::2], numbers[1::2], strict=True)):
        before, after = [(-begin, OPEN_END)] if begin else [], [(0, end)] if end else []
        if before or after:
            x = _joined(node, x, G.rank(node) - 1 - i, [*before, None, *after])
    return x


def _diff(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Subtract two slices; torch.onnx would trace the graph again for aten::diff."""
    x = G.source(node)
    count = G.argument(node, 1, "n", 1)
    ends = G.argument(node, 3, "prepend", None), G.argument(node, 4, "append", None)
    parts = [p for p in (ends[0], x, ends[1]) if p is not None]
    types = {G.value(p).dtype for p in parts}
    if count != 1 or len(types) > 1 or torch.bool in types:
        return None
    axis = G.argument(node, 2, "dim", -1)
    if len(parts) > 1:
        x = insert_before(node, aten.cat.default, (parts, axis), "cat")
    later = insert_before(node, aten.slice.Tensor, (x, axis, 1, OPEN_END), "later")
    earlier = insert_before(node, aten.slice.Tensor, (x, axis, 0, -1), "earlier")
    return insert_before(node, aten.sub.Tensor, (later, earlier))


def _channel_shuffle(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    channels, groups = int(G.shape(node)[1]), G.integer(node, 1)
    return _gather(module, node, 1, torch.arange(channels).reshape(groups, -1).t().reshape(-1))


def _index(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Replace x[:, i] with one list of indices by an index_select."""
    used = [(axis, i) for axis, i in enumerate(G.items(node, 1)) if i is not None]
    if len(used) != 1:
        return None
    axis, index = used[0]
    whole = isinstance(index, fx.Node) and G.value(index).dtype in (torch.int64, torch.int32)
    if not whole or G.rank(index) != 1:
        return None
    if index.op == "get_attr" and bool(
        (order := G.read_values(G.tensor(module, index))).lt(0).any()
    ):
        size = G.shape(G.source(node))[axis]
        if not isinstance(size, int):  # negative indices into an unknown size
            return None
        return _gather(module, node, axis, torch.where(order < 0, order + size, order))
    return insert_before(node, aten.index_select.default, (node.args[0], axis, index))


def _gather(module: fx.GraphModule, node: fx.Node, axis: int, order: torch.Tensor) -> fx.Node:
    index = G.add_tensor(module, next(iter(module.graph.nodes)), order, f"{G.name_of(node)}.order")
    return insert_before(node, aten.index_select.default, (node.args[0], axis, index))


def _pixel_unshuffle(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x, block = G.source(node), node.args[1]
    assert isinstance(block, int)
    sizes = G.shape(x)
    if len(sizes) != 4 or not all(isinstance(s, int) for s in sizes[1:]):
        return None
    c, h, w = sizes[1:]
    cells = insert_before(
        node, aten.reshape.default, (x, [-1, c, h // block, block, w // block, block]), "cells"
    )
    permuted = insert_before(node, aten.permute.default, (cells, [0, 1, 3, 5, 2, 4]), "permute")
    return insert_before(
        node, aten.reshape.default, (permuted, [-1, c * block**2, h // block, w // block])
    )


def _joins(axis: int) -> Rule:
    """Return a rule for hstack and the like; tensors without that axis would be reshaped."""

    def rule(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        parts = G.sources(node)
        if any(G.rank(part) <= max(axis, 1) for part in parts):
            return None
        return insert_before(node, aten.cat.default, (parts, axis))

    return rule


def _flip(*axes: int) -> Rule:
    """Return a rule that replaces fliplr or flipud by a flip along these axes."""
    return lambda _, node: insert_before(node, aten.flip.default, (node.args[0], list(axes)))


def _rot90(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Replace a rotation by a flip and a transpose, or by a flip along both axes."""
    x, (first, second) = node.args[0], G.argument(node, 2, "dims", [0, 1])
    times = int(G.argument(node, 1, "k", 1)) % 4
    if times == 0:
        return None
    if times == 2:
        return insert_before(node, aten.flip.default, (x, [first, second]))
    flipped = insert_before(node, aten.flip.default, (x, [second if times == 1 else first]), "flip")
    return insert_before(node, aten.transpose.int, (flipped, first, second))


def _squeezed(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Name the dimensions of size 1, so that they do not depend on the batch."""
    x = G.source(node)
    ones = [axis for axis, size in enumerate(G.shape(x)) if type(size) is int and size == 1]
    return insert_before(node, aten.squeeze.dims, (x, ones)) if ones else x


def _transposed(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x = G.source(node)
    return insert_before(node, aten.transpose.int, (x, 0, 1)) if G.rank(x) == 2 else x


MOVE_RULES: Rules = {
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.chunk.default: _split,
    aten.unbind.int: _split,
    aten.reshape.default: _view,
    aten.concat.default: _concat,
    aten.concatenate.default: _concat,
    aten.cat.default: _one,
    aten.stack.default: _stack,
    aten.hstack.default: _joins(1),
    aten.column_stack.default: _joins(1),
    aten.vstack.default: _joins(0),
    aten.dstack.default: _joins(2),
    aten.t.default: _transposed,
    aten.squeeze.default: _squeezed,
    aten.fliplr.default: _flip(1),
    aten.flipud.default: _flip(0),
    aten.rot90.default: _rot90,
    aten.roll.default: _roll,
    aten.diff.default: _diff,
    aten.channel_shuffle.default: _channel_shuffle,
    aten.index.Tensor: _index,
    aten.pixel_unshuffle.default: _pixel_unshuffle,
}
