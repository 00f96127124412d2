"""Multiply-accumulates (MACs) of calls at the captured sizes.

`qtool.backends.onnx.mac_counts` counts those of nodes in ONNX files with the same formulas.
"""

from __future__ import annotations

from math import prod
from typing import Any

from torch import fx

from qtool.core import graph as G
from qtool.core.mac_formulas import (
    of_einsum,
    of_layer,
    of_product,
    of_recurrent,
    of_transposed,
)


def _sizes(argument: Any) -> list[int]:
    assert isinstance(argument, fx.Node)
    return [G.hint(s) for s in G.shape(argument)]


def layer(node: fx.Node) -> int:
    return of_layer(_sizes(node), _sizes(node.args[1]))


def transposed(node: fx.Node) -> int:
    return of_transposed(_sizes(node.args[0]), _sizes(node.args[1]))


def product(node: fx.Node, second: int = 1) -> int:
    """MACs of a matrix product whose second factor is the argument at `second`."""
    return of_product(_sizes(node), _sizes(node.args[second]))


def attention(node: fx.Node) -> int:
    """MACs of queries times keys, and of the weights times values."""
    query, key, value = (_sizes(a) for a in node.args[:3])
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def einsum(node: fx.Node) -> int:
    equation, operands = node.args[:2]
    assert isinstance(operands, list | tuple)
    return of_einsum(str(equation), [_sizes(o) for o in operands])


def recurrent(node: fx.Node) -> int:
    return of_recurrent(_sizes(node.args[0])[:2], *map(_sizes, node.args[1:3]))
