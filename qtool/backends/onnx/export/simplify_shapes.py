"""Removes arithmetic on sizes that follow from the input: Reshape and Expand keep them.

A model of dynamic batch and length computes its sizes at each view, and ONNX would need four small
nodes for each of them, a third of all nodes of a language model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops

aten = torch.ops.aten


def simplify_shapes(graph: fx.Graph) -> None:
    """Simplify the sizes of a graph about to be written, in place, and remove unused nodes.

    A size that has to be computed is computed once.
    """
    first: dict[str, fx.Node] = {}
    for node in graph.nodes:
        if isinstance(size := G.value(node), torch.SymInt) and node.op == "call_function":
            node.replace_all_uses_with(first.setdefault(str(size), node))
        find = _STATIC_SIZES.get(node.target)
        if find is None or all(isinstance(size, int) for size in node.args[1]):
            continue
        after = G.shape(node)
        sizes: Sequence[Any] | None = find(G.shape(node.args[0]), after)
        if sizes is None:  # -1 for a size that is fixed says less
            pairs = zip(node.args[1], after, strict=True)
            sizes = [new if isinstance(new, int) else size for size, new in pairs]
        node.args = (node.args[0], sizes, *node.args[2:])
    graph.eliminate_dead_code()


def _reshaped(before: Sequence[Any], after: Sequence[Any]) -> list[int] | None:
    """Return 0 for each size of the input in its place, -1 for one other size; None for more."""
    if 0 in after:  # 0 would copy the size of the input
        return None
    sizes = [
        size if isinstance(size, int) else 0 if _same(size, axis, before) else -1
        for axis, size in enumerate(after)
    ]
    return sizes if sizes.count(-1) < 2 else None


def _expanded(before: Sequence[Any], after: Sequence[Any]) -> list[int] | None:
    """Return -1 for each size of the input; None if another size is computed."""
    new = len(after) - len(before)
    if not all(isinstance(s, int) or _same(s, i - new, before) for i, s in enumerate(after)):
        return None
    return [size if isinstance(size, int) else -1 for size in after]


def _same(size: Any, axis: int, before: Sequence[Any]) -> bool:
    return 0 <= axis < len(before) and str(before[axis]) == str(size)


_STATIC_SIZES: Mapping[Any, Callable[[Sequence[Any], Sequence[Any]], list[int] | None]] = {
    torch_ops.reshape: _reshaped,
    aten.expand.default: _expanded,
}
