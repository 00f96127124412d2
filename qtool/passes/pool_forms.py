"""Pools in as few forms as can be: global averages, and windows that need no `ceil_mode`.

Averages over all positions become `qtool::global_average_pool`; an adaptive pool whose windows are
equal a plain one; the maximum alone of a pool that also gives indices a pool without them; an
average with a divisor of its own a multiple of the mean. The mean in a window that hangs over the
end is that of the cells inside, which is what `count_include_pad=False` says: with padding that
counts the image is padded first. (Runtimes do not agree on `ceil_mode` and padding that counts.)
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import fx

from qtool import graph as G
from qtool.graph import torch_ops
from qtool.passes.rules import Rule, ints, made

__all__ = ["POOL_RULES"]

aten = torch.ops.aten
_MAX = {1: aten.max_pool1d.default, 2: aten.max_pool2d.default, 3: aten.max_pool3d.default}
_AVERAGE = {1: aten.avg_pool1d.default, 2: aten.avg_pool2d.default, 3: aten.avg_pool3d.default}


def _equal_windows(x: fx.Node, out: tuple[Any, ...]) -> list[int] | None:
    """The window of an adaptive pool, where all are equal."""
    sizes = G.shape(x)[2:]
    fixed = all(isinstance(s, int) for s in sizes)
    if not fixed or any(s % o for s, o in zip(sizes, out, strict=True)):
        return None
    return [s // o for s, o in zip(sizes, out, strict=True)]


def _adaptive_average(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x, out = node.args[0], G.shape(node)[2:]
    assert isinstance(x, fx.Node)
    if all(size == 1 for size in out):
        return _global(node, keep=True)
    kernel = _equal_windows(x, out)
    return None if kernel is None else made(node, _AVERAGE[len(out)], (x, kernel, kernel))


def _adaptive_max(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """A maximum of maxima is exact: where windows differ, one after the other along each axis."""
    x, largest = node.args[0], _only_largest(node)
    assert isinstance(x, fx.Node)
    if largest is None:
        return None
    sizes, out = G.shape(x)[2:], G.shape(largest)[2:]
    if not all(isinstance(s, int) for s in sizes):
        return None
    if (kernel := _equal_windows(x, out)) is not None:
        return _instead(node, largest, made(node, _MAX[len(out)], (x, kernel, kernel)))
    for axis, (size, count) in enumerate(zip(sizes, out, strict=True)):
        parts = []
        for i in range(count):
            begin, end = i * size // count, -(-(i + 1) * size // count)
            cut = (x, axis + 2, begin, end)
            part = made(node, aten.slice.Tensor, cut, f"slice{axis}_{i}")
            window = [end - begin if a == axis else 1 for a in range(len(out))]
            parts.append(made(node, _MAX[len(out)], (part, window, window), f"max{axis}_{i}"))
        x = made(node, aten.cat.default, (parts, axis + 2), "" if axis + 1 == len(out) else "rows")
    return _instead(node, largest, x)


def _max_with_indices(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    largest = _only_largest(node)
    if largest is None:
        return None
    target = _MAX[G.rank(largest) - 2]
    return _instead(node, largest, made(node, target, node.args))


def _only_largest(node: fx.Node) -> fx.Node | None:
    """The first result, if nobody reads the second (the indices)."""
    reader = next(iter(node.users)) if len(node.users) == 1 else None
    first = reader is not None and reader.target is operator.getitem and reader.args[1] == 0
    return reader if first else None


def _instead(node: fx.Node, largest: fx.Node, new: fx.Node) -> fx.Node:
    G.replace(largest, new)
    return new


def _average(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    divisor = G.argument(node, 6, "divisor_override")
    n = G.rank(node) - 2
    if divisor is not None:
        x, padding = node.args[0], G.argument(node, 3, "padding", 0)
        args = (x, node.args[1], _stride(node), padding, False, True)
        mean = made(node, node.target, args, "mean")
        if not G.same_sizes(G.shape(mean), G.shape(node)):  # ceil_mode: windows of several sizes
            node.graph.erase_node(mean)
            return None
        mean = _average(module, mean) or mean
        return made(node, aten.mul.Tensor, (mean, prod(ints(node.args[1], n)) / divisor))
    if not any(ints(G.argument(node, 3, "padding", 0), n)):
        if G.same_sizes(G.shape(node)[2:], [1] * n):
            return _one_window(node)
        return _hanging(node) if G.argument(node, 4, "ceil_mode", False) else None
    return _counted(node) if G.argument(node, 4, "ceil_mode", False) else None


def _one_window(node: fx.Node) -> fx.Node:
    """A single, unpadded window: cut to the window, then a global pool."""
    x = node.args[0]
    assert isinstance(x, fx.Node)
    kernel = ints(node.args[1], G.rank(x) - 2)
    for axis, (size, width) in enumerate(zip(G.shape(x)[2:], kernel, strict=True), start=2):
        if not G.same_sizes([size], [width]):
            x = made(node, aten.slice.Tensor, (x, axis, 0, width), f"slice{axis}")
    return made(node, torch_ops.global_average_pool, (x,))


def _hanging(node: fx.Node) -> fx.Node | None:
    """Without padding: nothing but the overhang is outside; where none is, ceil_mode is idle."""
    x, n = node.args[0], G.rank(node) - 2
    kernel, stride = ints(node.args[1], n), _stride(node)
    plain = made(node, node.target, (x, kernel, stride))
    if G.same_sizes(G.shape(plain), G.shape(node)):
        return plain
    plain.graph.erase_node(plain)
    if G.argument(node, 5, "count_include_pad", True) is False:
        return None
    return made(node, node.target, (x, kernel, stride, [0] * n, True, False))


def _counted(node: fx.Node) -> fx.Node | None:
    """With padding that counts: padded first. A window that would begin in the padding behind the
    image is none, so it is cut off again."""
    x, n = node.args[0], G.rank(node) - 2
    kernel, stride = ints(node.args[1], n), _stride(node)
    padding = ints(G.argument(node, 3, "padding", 0), n)
    plain = made(node, node.target, (*node.args[:4], False, *node.args[5:]))
    if G.same_sizes(G.shape(plain), G.shape(node)):
        return plain
    plain.graph.erase_node(plain)
    wanted = G.shape(node)[2:]
    if not G.argument(node, 5, "count_include_pad", True):
        return None
    if not all(isinstance(s, int) for s in wanted):
        return None
    widths = [p for width in reversed(padding) for p in (width, width)]
    padded = made(node, aten.constant_pad_nd.default, (x, widths, 0.0), "pad")
    pooled = made(node, node.target, (padded, kernel, stride, [0] * n, True, False))
    for axis, (size, has) in enumerate(zip(wanted, G.shape(pooled)[2:], strict=True), start=2):
        if size != has:
            pooled = made(node, aten.slice.Tensor, (pooled, axis, 0, size), f"slice{axis}")
    return pooled


def _stride(node: fx.Node) -> list[int]:
    n = G.rank(node) - 2
    return ints(G.argument(node, 2, "stride") or node.args[1], n)


def _mean(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x, dims = node.args[0], G.argument(node, 1, "dim")
    assert isinstance(x, fx.Node)
    if not dims or G.rank(x) < 3 or node.kwargs.get("dtype") is not None:
        return None
    if {d % G.rank(x) for d in dims} != set(range(2, G.rank(x))) or not _is_image(x):
        return None
    return _global(node, keep=bool(G.argument(node, 2, "keepdim", False)))


def _is_image(x: fx.Node) -> bool:
    """Rank 4 or 5: a mean over dims (2, ...) is pooling. Rank 3 may be [batch, time, features]."""
    return G.rank(x) in (4, 5)


def _global(node: fx.Node, keep: bool) -> fx.Node:
    pooled = made(node, torch_ops.global_average_pool, (node.args[0],))
    if keep:
        return pooled
    return made(node, aten.squeeze.dims, (pooled, list(range(2, G.rank(pooled)))), "squeeze")


POOL_RULES: Mapping[Any, Rule] = {
    aten.adaptive_avg_pool1d.default: _adaptive_average,
    aten.adaptive_avg_pool2d.default: _adaptive_average,
    aten.adaptive_avg_pool3d.default: _adaptive_average,
    aten._adaptive_avg_pool2d.default: _adaptive_average,
    aten._adaptive_avg_pool3d.default: _adaptive_average,
    aten.adaptive_max_pool1d.default: _adaptive_max,
    aten.adaptive_max_pool2d.default: _adaptive_max,
    aten.adaptive_max_pool3d.default: _adaptive_max,
    aten.max_pool1d_with_indices.default: _max_with_indices,
    aten.max_pool2d_with_indices.default: _max_with_indices,
    aten.max_pool3d_with_indices.default: _max_with_indices,
    aten.avg_pool1d.default: _average,
    aten.avg_pool2d.default: _average,
    aten.avg_pool3d.default: _average,
    aten.mean.dim: _mean,
}
