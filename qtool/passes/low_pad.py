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

from qtool import graph as G
from qtool.passes.infra import GraphPass
from qtool.passes.rules import ints, made

__all__ = ["low_pad"]

aten = torch.ops.aten
_POOLS = frozenset({aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default})
_LOW = -65504.0  # the lowest of float16: what people write for -inf


def _applies(pool: fx.Node) -> bool:
    pad = pool.args[0] if pool.target in _POOLS else None
    if not isinstance(pad, fx.Node) or pad.target is not aten.constant_pad_nd.default:
        return False
    n = G.rank(pool) - 2
    widths, fill = list(pad.args[1]), G.argument(pad, 2, "value", 0)  # type: ignore[arg-type]  # ints
    inside = all(isinstance(w, int) and w >= 0 for w in widths) and not any(widths[2 * n :])
    plain = not any(_of(pool, 3, "padding", 0)) and not G.argument(pool, 5, "ceil_mode", False)
    window = zip(_covered(pool), _sides(pool), strict=True)
    return fill <= _LOW and inside and plain and all(max(side) < size for size, side in window)


def _rewrite(module: fx.GraphModule) -> int:
    found = [n for n in G.calls(module.graph) if _applies(n)]
    for pool in found:
        G.replace(pool, _without(pool))
    return len(found)


def _without(pool: fx.Node) -> fx.Node:
    pad = pool.args[0]
    assert isinstance(pad, fx.Node)
    x, sides, stride = pad.args[0], _sides(pool), _of(pool, 2, "stride", None)
    dilation, kernel = _of(pool, 4, "dilation", 1), _of(pool, 1, "kernel_size", 1)
    begins = [begin for begin, _ in sides]
    half = all(2 * b <= k for b, k in zip(begins, _covered(pool), strict=True))
    for ceil in (False, True) if half else ():
        if not ceil and any(begin != end for begin, end in sides):
            continue
        new = made(pool, pool.target, (x, kernel, stride, begins, dilation, ceil))
        if G.same_sizes(G.shape(new), G.shape(pool)):
            return new  # all windows begin at the same places
        new.graph.erase_node(new)
    for axis, (begin, end) in enumerate(sides, start=2):
        x = _repeated(pool, x, axis, begin, end)
    return made(pool, pool.target, (x, kernel, stride, [0] * len(sides), dilation, False))


def _repeated(pool: fx.Node, x: Any, axis: int, begin: int, end: int) -> Any:
    if not begin and not end:
        return x
    first = made(pool, aten.slice.Tensor, (x, axis, 0, 1), f"begin{axis}") if begin else None
    last = made(pool, aten.slice.Tensor, (x, axis, -1), f"end{axis}") if end else None
    return made(pool, aten.cat.default, ([first] * begin + [x] + [last] * end, axis), f"pad{axis}")


def _sides(pool: fx.Node) -> list[tuple[int, int]]:
    """(begin, end) of each spatial dimension; ATen pads from the last one."""
    pad: Any = pool.args[0]
    n = G.rank(pool) - 2
    widths = [int(w) for w in pad.args[1]] + [0] * (2 * n)
    return [(widths[2 * (n - 1 - d)], widths[2 * (n - 1 - d) + 1]) for d in range(n)]


def _covered(pool: fx.Node) -> list[int]:
    """How far a window reaches; with a dilation it may leave out the border: nothing then."""
    kernel, dilation = _of(pool, 1, "kernel_size", 1), _of(pool, 4, "dilation", 1)
    return [k if d == 1 else 1 for k, d in zip(kernel, dilation, strict=True)]


def _of(pool: fx.Node, index: int, name: str, default: Any) -> list[int]:
    value = G.argument(pool, index, name, default)
    if name == "stride" and not value:
        value = pool.args[1]
    return ints(value, G.rank(pool) - 2)


low_pad = GraphPass(
    "low_pad", _rewrite, lambda m: next((n for n in G.calls(m.graph) if _applies(n)), None)
)
