"""A pad with a value below all others, before a max pool, without that value.

Padding with -inf never decides a maximum, but no range of codes holds it. A pool has such padding
of its own, the same at both ends; and a window that hangs over the end holds no more than what is
inside it. Where neither says it, the border is repeated: each window that reaches over the border
holds the border, too, so that its maximum is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import GraphPass
from qtool.passes.rewrite_rules import insert_before

aten = torch.ops.aten
_LOW = -65504.0  # the lowest of float16: what people write for -inf


def _applies(pool: fx.Node) -> bool:
    pad = pool.args[0] if pool.target is torch_ops.max_pool else None
    if not isinstance(pad, fx.Node) or pad.target is not aten.constant_pad_nd.default:
        return False
    _, kernel, _, padding, dilation, ceil = _arguments(pool)
    widths, fill = list(pad.args[1]), G.argument(pad, 2, "value", 0)  # type: ignore[arg-type]  # ints
    inside = all(isinstance(w, int) and w >= 0 for w in widths) and not any(
        widths[2 * len(kernel) :]
    )
    # with a dilation a window may reach over the border and leave the border itself out
    reach = [k if d == 1 else 1 for k, d in zip(kernel, dilation, strict=True)]
    held = all(max(side) < r for side, r in zip(_sides(pool), reach, strict=True))
    return fill <= _LOW and inside and held and not any(padding) and not ceil


def _rewrite(module: fx.GraphModule) -> int:
    found = [n for n in G.calls(module.graph) if _applies(n)]
    for pool in found:
        G.replace(pool, _without(pool))
    return len(found)


def _without(pool: fx.Node) -> fx.Node:
    pad, kernel, stride, _, dilation, _ = _arguments(pool)
    x, sides = pad.args[0], _sides(pool)
    begins = [begin for begin, _ in sides]
    if all(map(_padded_alike, G.shape(x)[2:], begins, kernel, dilation)):
        for ceil in (False, True):
            new = insert_before(pool, pool.target, (x, kernel, stride, begins, dilation, ceil))
            if G.same_sizes(G.shape(new), G.shape(pool)):
                return new  # as many windows, which all begin at the same places
            new.graph.erase_node(new)
    for axis, (begin, end) in enumerate(sides, start=2):
        x = _repeated(pool, x, axis, begin, end)
    return insert_before(pool, pool.target, (x, kernel, stride, [0] * len(sides), dilation, False))


def _padded_alike(size: Any, begin: int, kernel: int, dilation: int) -> bool:
    """Whether a pool takes the padding in front, and as much behind holds a window."""
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
    """(begin, end) of each spatial dimension; ATen pads from the last one."""
    pad, n = _arguments(pool)[0], G.rank(pool) - 2
    widths = [int(w) for w in pad.args[1]] + [0] * (2 * n)
    return [(widths[2 * (n - 1 - d)], widths[2 * (n - 1 - d) + 1]) for d in range(n)]


def _arguments(pool: fx.Node) -> Any:
    return pool.args


max_pool_pad = GraphPass(
    "low_pad", _rewrite, lambda m: next((n for n in G.calls(m.graph) if _applies(n)), None)
)
