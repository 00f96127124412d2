"""Values by place and by rank, in forms that ONNX has: scatters, medians.

A scatter there takes exactly as many values as indices, where torch leaves the rest alone; a median
is the last of the smaller half.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import fx

from qtool import graph as G
from qtool.passes.rules import Rule, again, made

__all__ = ["ORDER_RULES"]

aten = torch.ops.aten


def _scatter(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    index, source = node.args[2:4]
    assert isinstance(index, fx.Node)
    assert isinstance(source, fx.Node)
    cut, pairs = source, zip(G.shape(index), G.shape(source), strict=True)
    for axis, (wanted, size) in enumerate(pairs):
        if isinstance(wanted, int) and not G.same_sizes([wanted], [size]):
            cut = made(node, aten.slice.Tensor, (cut, axis, 0, wanted), f"source{axis}")
    if cut is source:
        return None
    new = again(node, node.target, (*node.args[:3], cut, *node.args[4:]))
    new.kwargs = node.kwargs
    return new


def _ranked(node: fx.Node, x: Any, rank: int, axis: int, keep: bool) -> tuple[fx.Node, fx.Node]:
    """The value of that rank (from 1) among those along an axis, and its place."""
    least = made(node, aten.topk.default, (x, rank, axis, False, True), "least")
    found = []
    for i, what in enumerate(("values", "indices")):
        all_ = made(node, operator.getitem, (least, i), f"least.{what}")
        last = made(node, aten.slice.Tensor, (all_, axis, rank - 1, rank), f"{what}.kept")
        found.append(last if keep else made(node, aten.squeeze.dim, (last, axis), what))
    return found[0], found[1]


def _median(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x: Any = node.args[0]
    sizes = G.shape(x)
    if not all(isinstance(size, int) for size in sizes):
        return None
    flat = made(node, aten.reshape.default, (x, [-1]), "flat")
    return _ranked(node, flat, (prod(map(int, sizes)) + 1) // 2, 0, keep=False)[0]


def _along(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """median, kthvalue of one axis: each reader gets its part."""
    x: Any = node.args[0]
    is_rank = node.target is aten.kthvalue.default
    axis = int(G.argument(node, 2 if is_rank else 1, "dim", -1))
    keep = bool(G.argument(node, 3 if is_rank else 2, "keepdim", False))
    size = G.shape(x)[axis] if G.rank(x) else None
    users = list(node.users)
    if not isinstance(size, int) or any(u.target is not operator.getitem for u in users):
        return None
    rank: Any = node.args[1] if is_rank else (size + 1) // 2
    found = _ranked(node, x, rank, axis % G.rank(x), keep)
    for user in users:
        G.replace(user, found[0 if user.args[1] == 0 else 1])
    return found[0]


ORDER_RULES: Mapping[Any, Rule] = {
    aten.scatter.src: _scatter,
    aten.scatter_add.default: _scatter,
    aten.scatter_reduce.two: _scatter,
    aten.median.default: _median,
    aten.median.dim: _along,
    aten.kthvalue.default: _along,
}
