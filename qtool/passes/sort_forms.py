"""Scatters and medians in forms that ONNX has.

ONNX's scatter takes exactly as many values as indices; torch ignores the rest. A median is the last
element of the smaller half.
"""

from __future__ import annotations

import operator
from math import prod

import torch
from torch import fx
from torch.fx.node import Argument

from qtool.core import graph as G
from qtool.passes.rewrite_rules import Rules, clone_as, insert_before

aten = torch.ops.aten


def _scatter(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    index, source = G.source(node, 2), G.source(node, 3)
    cut, pairs = source, zip(G.shape(index), G.shape(source), strict=True)
    for axis, (count, size) in enumerate(pairs):
        if isinstance(count, int) and not G.same_sizes([count], [size]):
            cut = insert_before(node, aten.slice.Tensor, (cut, axis, 0, count), f"source{axis}")
    if cut is source:
        return None
    new = clone_as(node, node.target, (*node.args[:3], cut, *node.args[4:]))
    new.kwargs = node.kwargs
    return new


def _ranked(
    node: fx.Node, x: Argument, rank: int, axis: int, keep: bool
) -> tuple[fx.Node, fx.Node]:
    """Return the rank-th smallest value (from 1) along an axis, and its index."""
    least = insert_before(node, aten.topk.default, (x, rank, axis, False, True), "least")
    results = []
    for i, what in enumerate(("values", "indices")):
        all_ = insert_before(node, operator.getitem, (least, i), f"least.{what}")
        last = insert_before(node, aten.slice.Tensor, (all_, axis, rank - 1, rank), f"{what}.kept")
        results.append(last if keep else insert_before(node, aten.squeeze.dim, (last, axis), what))
    return results[0], results[1]


def _middle(node: fx.Node, x: Argument, axis: int, keep: bool) -> tuple[fx.Node, fx.Node]:
    """Return the median along an axis of dynamic size, and its index."""
    ordered = insert_before(node, aten.sort.default, (x, axis), "ordered")
    size = insert_before(node, aten.sym_size.int, (x, axis), "size")
    rank = insert_before(
        node, operator.floordiv, (insert_before(node, operator.sub, (size, 1), "last"), 2), "rank"
    )
    results = []
    for i, what in enumerate(("values", "indices")):
        all_ = insert_before(node, operator.getitem, (ordered, i), f"ordered.{what}")
        one = insert_before(node, aten.select.int, (all_, axis, rank), what)
        results.append(
            insert_before(node, aten.unsqueeze.default, (one, axis), f"{what}.kept")
            if keep
            else one
        )
    return results[0], results[1]


def _median(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x = G.source(node)
    sizes = G.shape(x)
    flat = insert_before(node, aten.reshape.default, (x, [-1]), "flat")
    if not all(isinstance(size, int) for size in sizes):
        return _middle(node, flat, 0, keep=False)[0]
    return _ranked(node, flat, (prod(map(int, sizes)) + 1) // 2, 0, keep=False)[0]


def _along(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Replace median or kthvalue along one axis; readers take values or indices."""
    x = G.source(node)
    is_rank = node.target is aten.kthvalue.default
    axis = int(G.argument(node, 2 if is_rank else 1, "dim", -1))
    keep = bool(G.argument(node, 3 if is_rank else 2, "keepdim", False))
    users = list(node.users)
    if not G.rank(x) or any(u.target is not operator.getitem for u in users):
        return None
    size = G.shape(x)[axis]
    if is_rank or isinstance(size, int):
        rank = G.integer(node, 1) if is_rank else (size + 1) // 2
        results = _ranked(node, x, rank, axis % G.rank(x), keep)
    else:
        results = _middle(node, x, axis % G.rank(x), keep)
    for user in users:
        G.replace(user, results[0 if user.args[1] == 0 else 1])
    return results[0]


SORT_RULES: Rules = {
    aten.scatter.src: _scatter,
    aten.scatter_add.default: _scatter,
    aten.scatter_reduce.two: _scatter,
    aten.median.default: _median,
    aten.median.dim: _along,
    aten.kthvalue.default: _along,
}
