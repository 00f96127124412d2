"""What rules share: those of canonicalize rewrite one node, or return None."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G

aten = torch.ops.aten

Rule = Callable[[fx.GraphModule, fx.Node], fx.Node | None]
"""Gives the node that takes the place of the old one, which is then erased."""


def is_call(node: Any, target: Any) -> bool:
    """Whether a node calls the operator and nothing else is told of it but its tensors."""
    return isinstance(node, fx.Node) and node.target is target and not node.kwargs


def commuted(node: Any, target: Any) -> Iterator[tuple[Any, Any]]:
    """The operands of a call, in both orders."""
    if is_call(node, target):
        first, second = node.args
        yield from ((first, second), (second, first))


def ints(value: Any, count: int) -> list[int]:
    """One size for every dimension, as a list of `count`."""
    values = [int(v) for v in value] if isinstance(value, list | tuple) else [int(value)]
    return values * count if len(values) == 1 else values


def insert_before(node: fx.Node, target: Any, args: tuple[Any, ...], part: str = "") -> fx.Node:
    """A call before `node`, under its name; `part` of it, if it is not the last one."""
    name = G.name_of(node)
    return G.add_call(node, target, args, f"{name}.{part}" if part else name, node)


def clone_as(node: fx.Node, target: Any, args: tuple[Any, ...]) -> fx.Node:
    """The node once more by another operator, before it: its value has the same shape and dtype."""
    return G.add_call(node, target, args, G.name_of(node), node, value_from=node)


def leading_sizes(node: fx.Node, x: fx.Node, count: int) -> list[int | fx.Node]:
    """The first `count` sizes of x, for a reshape before `node` that keeps them: a dynamic one is
    -1, which the runtime works out, and a node each where there are several."""
    sizes = G.shape(x)[:count]
    dynamic = [axis for axis, size in enumerate(sizes) if not isinstance(size, int)]
    found = [-1 if axis in dynamic else int(size) for axis, size in enumerate(sizes)]
    if len(dynamic) < 2:
        return list(found)
    name = G.name_of(node)
    return [
        G.add_call(node, aten.sym_size.int, (x, axis), f"{name}.size{axis}", node)
        if axis in dynamic
        else size
        for axis, size in enumerate(found)
    ]
