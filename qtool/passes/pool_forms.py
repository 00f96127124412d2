"""Pools in few operators: global averages, and windows without `ceil_mode`.

Pools of every rank become `qtool::max_pool` and `qtool::average_pool`, averages over all positions
`qtool::global_average_pool`, an adaptive pool with equal windows a plain one, a max pool whose
indices are unused a pool without them, an average with a divisor a multiple of the mean. An
adaptive pool whose windows depend on dynamic sizes becomes `qtool::adaptive_average_pool` or
`qtool::adaptive_max_pool`, which computes them when it runs. An extreme along an axis whose indices
are unused, or over all positions of a dynamic size, becomes aten::amax or aten::amin. The mean of a
window that hangs over the end counts the elements inside, as with uncounted padding; with
counted padding the image is padded first. (Runtimes do not agree on `ceil_mode` with counted
padding.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from math import prod
from typing import Any

import torch
from torch import fx
from torch.fx.node import Target

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.ops import row_of
from qtool.core.windows import spans, window_count
from qtool.passes.rewrite_rules import Rule, Rules, insert_before, ints

aten = torch.ops.aten
_Body = Callable[[fx.Node, fx.Node, G.Shape], fx.Node | None]
"""(call, image [N, C, ...], sizes of the result) -> the pool that replaces it."""


@dataclass(frozen=True)
class _Windows:
    """The windows of an average; fields in the order of qtool::average_pool."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    ceil_mode: bool = False
    counted: bool = True
    divisor: int | None = None


def _pool(rank: int, body: _Body, indices: bool = False) -> Rule:
    """Return a rule for a pool over `rank` dimensions, of a batch or of one image.

    `indices`: the pool also returns indices; the rule applies if they are unused.
    """

    def rule(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        x, whole = G.source(node), _values_only(node) if indices else node
        if whole is None:
            return None
        one = G.rank(x) == rank + 1
        if one:
            x = insert_before(node, aten.unsqueeze.default, (x, 0), "batch")
        new = body(node, x, G.shape(whole)[-rank:])
        if new is not None and one:
            new = insert_before(node, aten.squeeze.dim, (new, 0), "squeeze")
        if new is not None and indices:
            G.replace(whole, new)
        return new

    return rule


def _values_only(node: fx.Node) -> fx.Node | None:
    """Return the first result if the second (the indices) is unused."""
    reader = next(iter(node.users)) if len(node.users) == 1 else None
    first = reader is not None and reader.target is operator.getitem and reader.args[1] == 0
    return reader if first else None


def _equal_windows(x: fx.Node, out: G.Shape) -> list[int] | None:
    """Return the window of an adaptive pool if all are equal."""
    sizes = G.shape(x)[2:]
    if not _is_fixed(x) or any(s % o for s, o in zip(sizes, out, strict=True)):
        return None
    return [s // o for s, o in zip(sizes, out, strict=True)]


def _dynamic_windows(node: fx.Node, x: fx.Node, out: G.Shape, pool: Target) -> fx.Node | None:
    """Return an adaptive pool whose windows are computed when it runs, None where the number of
    windows is another size than that of the image."""
    pairs = list(zip(G.shape(x)[2:], out, strict=True))
    counts = [0 if G.same_sizes([size], [count]) else count for size, count in pairs]
    if not all(isinstance(count, int) for count in counts):
        return None
    return insert_before(node, pool, (x, counts))


def _is_fixed(x: fx.Node) -> bool:
    return all(isinstance(s, int) for s in G.shape(x)[2:])


def _adaptive_average(node: fx.Node, x: fx.Node, out: G.Shape) -> fx.Node | None:
    if all(type(size) is int and size == 1 for size in out):
        return _global(node, x, keep=True)
    if (kernel := _equal_windows(x, out)) is not None:
        return _mean_of(node, x, _Windows(kernel, kernel, [0] * len(out)))
    if not _is_fixed(x):
        return _dynamic_windows(node, x, out, torch_ops.adaptive_average_pool)
    if len(out) < 3:
        return None  # ONNX has no other form of unequal windows in three dimensions

    def mean(part: fx.Node, axis: int, name: str) -> fx.Node:
        return insert_before(node, aten.mean.dim, (part, [axis + 2], True), f"mean{name}")

    return _by_axis(node, x, out, mean, "along{}")


def _by_axis(
    node: fx.Node,
    x: fx.Node,
    out: G.Shape,
    pool: Callable[[fx.Node, int, str], fx.Node],
    joined: str,
) -> fx.Node:
    """Pool unequal windows along one axis after the other: exact for a mean, and for a maximum.

    Args:
        pool: (window, axis, part of a name) -> the window pooled along that axis.
        joined: part of the name of the result along an axis.
    """
    for axis, (size, count) in enumerate(zip(G.shape(x)[2:], out, strict=True)):
        parts = []
        for i, (begin, end) in enumerate(_unequal(size, count)):
            cut = (x, axis + 2, begin, end)
            window = insert_before(node, aten.slice.Tensor, cut, f"slice{axis}_{i}")
            parts.append(pool(window, axis, f"{axis}_{i}"))
        name = "" if axis + 1 == len(out) else joined.format(axis)
        whole = len(parts) == 1  # a concat of one tensor would round its codes twice
        x = parts[0] if whole else insert_before(node, aten.cat.default, (parts, axis + 2), name)
    return x


def _unequal(size: int, count: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the windows of an adaptive pool along one axis."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _largest_of(node: fx.Node, x: fx.Node, kernel: list[int], part: str = "") -> fx.Node:
    zeros, ones = [0] * len(kernel), [1] * len(kernel)
    return insert_before(node, torch_ops.max_pool, (x, kernel, kernel, zeros, ones, False), part)


def _adaptive_max(node: fx.Node, x: fx.Node, out: G.Shape) -> fx.Node | None:
    if not _is_fixed(x) and all(type(size) is int and size == 1 for size in out):
        return insert_before(node, aten.amax.default, (x, list(range(2, G.rank(x))), True))
    if not _is_fixed(x):
        return _dynamic_windows(node, x, out, torch_ops.adaptive_max_pool)
    if (kernel := _equal_windows(x, out)) is not None:
        return _largest_of(node, x, kernel)

    def largest(part: fx.Node, axis: int, name: str) -> fx.Node:
        window = [G.shape(part)[a + 2] if a == axis else 1 for a in range(len(out))]
        return _largest_of(node, part, window, f"max{name}")

    return _by_axis(node, x, out, largest, "rows")


def _extreme(extreme: Target) -> Rule:
    """Return the rule of an extreme along one axis whose indices are unused."""

    def rule(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        values, keep = _values_only(node), bool(G.argument(node, 2, "keepdim", False))
        if values is None or not G.rank(G.source(node)):
            return None
        new = insert_before(node, extreme, (node.args[0], [G.argument(node, 1, "dim")], keep))
        G.replace(values, new)
        return new

    return rule


def _max(node: fx.Node, x: fx.Node, out: G.Shape) -> fx.Node:
    n = len(out)
    kernel, stride = ints(node.args[1], n), ints(G.argument(node, 2, "stride") or node.args[1], n)
    padding = ints(G.argument(node, 3, "padding", 0), n)
    dilation = ints(G.argument(node, 4, "dilation", 1), n)
    floor = _floor_sizes(x, kernel, stride, padding, dilation)
    # drop ceil_mode where no window hangs over, or torch drops the window beginning outside
    ceil = bool(G.argument(node, 5, "ceil_mode", False)) and not G.same_sizes(floor, out)
    return insert_before(node, torch_ops.max_pool, (x, kernel, stride, padding, dilation, ceil))


def _floor_sizes(
    x: fx.Node, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> list[Any]:
    """Return the number of windows within the padded image per axis; <= 0 if it is too small."""
    both = [2 * width for width in padding]
    return list(map(window_count, G.shape(x)[2:], spans(kernel, dilation), stride, both))


def _average(node: fx.Node, x: fx.Node, out: G.Shape) -> fx.Node:
    n = len(out)
    windows = _Windows(
        ints(node.args[1], n),
        ints(G.argument(node, 2, "stride") or node.args[1], n),
        ints(G.argument(node, 3, "padding", 0), n),
        bool(G.argument(node, 4, "ceil_mode", False)),
        bool(G.argument(node, 5, "count_include_pad", True)),
        G.argument(node, 6, "divisor_override"),
    )
    if windows.divisor is None:
        return _simplest(node, x, windows, out)
    plain = replace(windows, ceil_mode=False, counted=True, divisor=None)
    if not G.same_sizes(_inside(x, windows), out):  # ceil_mode: windows of several sizes
        return _mean_of(node, x, windows)
    mean = _simplest(_mean_of(node, x, plain, "mean"), x, plain, out)
    return insert_before(node, aten.mul.Tensor, (mean, prod(windows.kernel) / windows.divisor))


def _inside(x: fx.Node, w: _Windows) -> list[Any]:
    return _floor_sizes(x, w.kernel, w.stride, w.padding, [1] * len(w.kernel))


def _mean_of(node: fx.Node, x: fx.Node, windows: _Windows, part: str = "") -> fx.Node:
    return insert_before(node, torch_ops.average_pool, (x, *astuple(windows)), part)


def _simplest(node: fx.Node, x: fx.Node, windows: _Windows, out: G.Shape) -> fx.Node:
    """Return an average without ceil_mode, or without counting elements outside the image."""
    if not any(windows.padding) and G.same_sizes(out, [1] * len(out)):
        return _one_window(node, x, windows.kernel)
    if not windows.ceil_mode:
        return _mean_of(node, x, windows)
    if G.same_sizes(_inside(x, windows), out):  # no window hangs over
        return _mean_of(node, x, replace(windows, ceil_mode=False))
    if not windows.counted:
        return _mean_of(node, x, windows)
    if not any(windows.padding):  # only the overhang is outside
        return _mean_of(node, x, replace(windows, counted=False))
    return _padded_first(node, x, windows, out) or _mean_of(node, x, windows)


def _one_window(node: fx.Node, x: fx.Node, kernel: list[int]) -> fx.Node:
    """Return a single unpadded window as a slice and a global pool."""
    for axis, (size, width) in enumerate(zip(G.shape(x)[2:], kernel, strict=True), start=2):
        if not G.same_sizes([size], [width]):
            x = insert_before(node, aten.slice.Tensor, (x, axis, 0, width), f"slice{axis}")
    return insert_before(node, torch_ops.global_average_pool, (x,))


def _padded_first(node: fx.Node, x: fx.Node, windows: _Windows, out: G.Shape) -> fx.Node | None:
    """Pad first, for counted padding; drop windows that begin in the padding behind the image."""
    if not all(isinstance(s, int) for s in out):
        return None
    widths = [p for width in reversed(windows.padding) for p in (width, width)]
    padded = insert_before(node, aten.constant_pad_nd.default, (x, widths, 0.0), "pad")
    inside = replace(windows, padding=[0] * len(out), counted=False)
    pooled = _mean_of(node, padded, inside)
    for axis, (size, has) in enumerate(zip(out, G.shape(pooled)[2:], strict=True), start=2):
        if size != has:
            pooled = insert_before(node, aten.slice.Tensor, (pooled, axis, 0, size), f"slice{axis}")
    return pooled


def _mean(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x, dims = G.source(node), G.argument(node, 1, "dim")
    if not dims or G.rank(x) < 3 or node.kwargs.get("dtype") is not None:
        return None
    if {d % G.rank(x) for d in dims} != set(range(2, G.rank(x))) or not _is_image(x):
        return None
    return _global(node, x, keep=bool(G.argument(node, 2, "keepdim", False)))


def _is_image(x: fx.Node) -> bool:
    """Return whether a mean over dims (2, ...) is a pool. Three dimensions may be [batch, time,
    features]; they are a signal where a convolution gives it."""
    node: object = x
    while G.rank(x) == 3 and isinstance(node, fx.Node) and node.op == "call_function":
        if node.target is torch_ops.conv:
            return True
        row = row_of(node)
        by_channel = row is not None and (row.flat or row.homogeneous)
        node = node.args[0] if by_channel or node.target is aten.batch_norm.default else None
    return G.rank(x) in (4, 5)


def _global(node: fx.Node, x: fx.Node, keep: bool) -> fx.Node:
    pooled = insert_before(node, torch_ops.global_average_pool, (x,))
    if keep:
        return pooled
    return insert_before(
        node, aten.squeeze.dims, (pooled, list(range(2, G.rank(pooled)))), "squeeze"
    )


POOL_RULES: Rules = {
    aten.adaptive_avg_pool1d.default: _pool(1, _adaptive_average),
    aten.adaptive_avg_pool2d.default: _pool(2, _adaptive_average),
    aten.adaptive_avg_pool3d.default: _pool(3, _adaptive_average),
    aten._adaptive_avg_pool2d.default: _pool(2, _adaptive_average),
    aten._adaptive_avg_pool3d.default: _pool(3, _adaptive_average),
    aten.adaptive_max_pool1d.default: _pool(1, _adaptive_max, indices=True),
    aten.adaptive_max_pool2d.default: _pool(2, _adaptive_max, indices=True),
    aten.adaptive_max_pool3d.default: _pool(3, _adaptive_max, indices=True),
    aten.max_pool1d.default: _pool(1, _max),
    aten.max_pool2d.default: _pool(2, _max),
    aten.max_pool3d.default: _pool(3, _max),
    aten.max_pool1d_with_indices.default: _pool(1, _max, indices=True),
    aten.max_pool2d_with_indices.default: _pool(2, _max, indices=True),
    aten.max_pool3d_with_indices.default: _pool(3, _max, indices=True),
    aten.avg_pool1d.default: _pool(1, _average),
    aten.avg_pool2d.default: _pool(2, _average),
    aten.avg_pool3d.default: _pool(3, _average),
    aten.max.dim: _extreme(aten.amax.default),
    aten.min.dim: _extreme(aten.amin.default),
    aten.mean.dim: _mean,
}
