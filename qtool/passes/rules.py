"""What the rules of canonicalize share: a rule rewrites one node, or returns None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from qtool import graph as G

__all__ = ["Rule", "again", "ints", "made"]

Rule = Callable[[fx.GraphModule, fx.Node], fx.Node | None]
"""Gives the node that takes the place of the old one, which is then erased."""


def ints(value: Any, count: int) -> list[int]:
    """One size for every dimension, as a list of `count`."""
    values = [int(v) for v in value] if isinstance(value, list | tuple) else [int(value)]
    return values * count if len(values) == 1 else values


def made(node: fx.Node, target: Any, args: tuple[Any, ...], part: str = "") -> fx.Node:
    """A call before `node`, under its name; `part` of it, if it is not the last one."""
    name = G.name_of(node)
    return G.add_call(node, target, args, f"{name}.{part}" if part else name, node)


def again(node: fx.Node, target: Any, args: tuple[Any, ...]) -> fx.Node:
    """The node once more by another operator, before it: its value has the same shape and dtype."""
    return G.add_call(node, target, args, G.name_of(node), node, valued=node)
