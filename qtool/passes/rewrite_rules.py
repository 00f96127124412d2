"""Helpers of passes and of the rules of canonicalize."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

import torch
from torch import fx
from torch.fx.node import Argument, Target

from qtool.core import graph as G

aten = torch.ops.aten

Rule = Callable[[fx.GraphModule, fx.Node], fx.Node | None]
"""Returns the node that replaces the given one, or None to leave it."""
Rules = Mapping[Target, Rule]
"""Operator or function of torch -> its rule."""


def is_call(node: Argument, target: Target) -> TypeGuard[fx.Node]:
    """Return whether a node calls the operator without keyword arguments."""
    return isinstance(node, fx.Node) and node.target is target and not node.kwargs


def commuted(node: Argument, target: Target) -> Iterator[tuple[Any, Any]]:
    """Yield the two operands of a call in both orders."""
    if is_call(node, target):
        first, second = node.args
        yield from ((first, second), (second, first))


def number(module: fx.GraphModule, value: Argument) -> float | None:
    """Return a scalar, or the value of a stored float tensor of one element; None for others."""
    if isinstance(value, fx.Node):
        if value.op != "get_attr" or G.value(value).numel() != 1 or not G.is_float(value):
            return None
        return float(G.read_values(G.tensor(module, value)).flatten()[0])
    return float(value) if isinstance(value, int | float) else None


def ints(value: Any, count: int) -> list[int]:
    """Return one size for each of `count` dimensions."""
    values = [int(v) for v in value] if isinstance(value, list | tuple) else [int(value)]
    return values * count if len(values) == 1 else values


def insert_before(
    node: fx.Node, target: Target, args: tuple[Argument, ...], part: str = ""
) -> fx.Node:
    """Insert a call before `node`, named after it, with the suffix `part` if it is not the last."""
    name = G.name_of(node)
    return G.add_call(node, target, args, f"{name}.{part}" if part else name, node)


def clone_as(node: fx.Node, target: Target, args: tuple[Argument, ...]) -> fx.Node:
    """Insert a call before `node` with its name, and a value of the same shape and dtype."""
    return G.add_call(node, target, args, G.name_of(node), node, value_from=node)


def leading_sizes(node: fx.Node, x: fx.Node, count: int) -> list[int | fx.Node]:
    """Return the first `count` sizes of x, for a reshape inserted before `node`.

    A single dynamic size is -1, which the runtime infers; several are a node each.
    """
    sizes = G.shape(x)[:count]
    dynamic = [axis for axis, size in enumerate(sizes) if not isinstance(size, int)]
    static = [-1 if axis in dynamic else int(size) for axis, size in enumerate(sizes)]
    if len(dynamic) < 2:
        return list(static)
    name = G.name_of(node)
    return [
        G.add_call(node, aten.sym_size.int, (x, axis), f"{name}.size{axis}", node)
        if axis in dynamic
        else size
        for axis, size in enumerate(static)
    ]


def add_parameters(module: fx.GraphModule, name: str, **values: torch.Tensor) -> list[fx.Node]:
    """Store each value as the parameter `name.key`, read at the beginning of the graph."""
    first = next(iter(module.graph.nodes))
    return [
        G.add_tensor(module, first, G.as_parameter(value), f"{name}.{key}")
        for key, value in values.items()
    ]
