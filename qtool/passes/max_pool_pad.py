"""A max pool behind a pad with -inf takes the padding itself, or a repeated border.

Padding with a value below all others never decides a maximum, but no range of codes contains it. A
pool has such padding of its own, equal at both ends, and a window that hangs over the end contains
only the values inside. Where neither fits, the border is repeated: each window that reaches over
the border contains the border, too, so that its maximum is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import insert_before

aten = torch.ops.aten
_LOW = -65504.0  # the lowest float16, often written for -inf


def _applies(pool: fx.Node) -> bool:
    pad = pool.args[0] if pool.target is torch_ops.max_pool else None
    if not isinstance(pad, fx.Node) or pad.target is not aten.constant_pad_nd.default:
        return False
    _, kernel, _, padding, dilation, ceil = _arguments(pool)
    widths, fill = G.items(pad, 1), G.argument(pad, 2, "value", 0)
    if not all(isinstance(w, int) and w >= 0 for w in widths) or any(widths[2 * len(kernel) :]):
        return False
    # with a dilation a window may reach over the border and leave the border itself out
    reach = [k if d == 1 else 1 for k, d in zip(kernel, dilation, strict=True)]
    within = all(max(side) < r for side, r in zip(_sides(pool), reach, strict=True))
    return fill <= _LOW and within and not any(padding) and not ceil


def _rewrite(module: fx.GraphModule, pool: fx.Node, _: bool) -> None:
    G.replace(pool, _without_pad(pool))


def _without_pad(pool: fx.Node) -> fx.Node:
    pad, kernel, stride, _, dilation, _ = _arguments(pool)
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


def _allowed(size: Any, begin: int, kernel: int, dilation: int) -> bool:
    """Return whether a pool may pad by `begin` at both ends of an axis."""
    holds = type(size) is not int or size + 2 * begin > dilation * (kernel - 1)
    return 2 * begin <= kernel and holds


def _repeated(pool: fx.Node, x: Any, axis: int, begin: int, end: int) -> Any:
    if not begin and not end:
        return x
    first = (
        insert_before(pool, aten.slice.Tensor, (x, axis, 0, 1), f"begin{axis}") if begin else None
    )
    last = insert_before(pool, aten.slice.Tensor, (x, axis, -1), f"end{axis}") if end else None
    return insert_before(
        pool, aten.cat.default, ([first] * begin + [x] + [last] * end, axis), f"pad{axis}"
    )


def _sides(pool: fx.Node) -> list[tuple[int, int]]:
    """Return (begin, end) of each spatial dimension; ATen pads from the last one."""
    pad, n = _arguments(pool)[0], G.rank(pool) - 2
    widths = [int(w) for w in pad.args[1]] + [0] * (2 * n)
    return [(widths[2 * (n - 1 - d)], widths[2 * (n - 1 - d) + 1]) for d in range(n)]


def _arguments(pool: fx.Node) -> Any:
    return pool.args


max_pool_pad = pattern_pass("low_pad", _applies, _rewrite)
