"""Multiply-accumulates of calls at the captured sizes."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import fx

from qtool import graph as G

__all__ = ["attention", "einsum", "layer", "product", "recurrent", "transposed"]


def _sizes(argument: Any) -> list[int]:
    assert isinstance(argument, fx.Node)
    return [G.hint(s) for s in G.shape(argument)]


def layer(node: fx.Node) -> int:
    """Of a convolution or a linear layer: one row of the weight for each output."""
    return prod(_sizes(node)) * prod(_sizes(node.args[1])[1:])


def transposed(node: fx.Node) -> int:
    """Of a transposed convolution: every weight for each position of the input."""
    source = _sizes(node.args[0])
    return prod(_sizes(node.args[1])) * source[0] * prod(source[2:])


def product(node: fx.Node, second: int = 1) -> int:
    """Of a product of matrices, the second of which is the argument at `second`."""
    sizes = _sizes(node.args[second])
    return prod(_sizes(node)) * (sizes[-2] if len(sizes) > 1 else sizes[0])


def attention(node: fx.Node) -> int:
    """Queries times keys, and the weights times values."""
    query, key, value = (_sizes(a) for a in node.args[:3])
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def einsum(node: fx.Node) -> int:
    """The product of all indices, as written; 0 for an equation with an ellipsis."""
    equation, operands = node.args[:2]
    terms = str(equation).replace(" ", "").split("->")[0].split(",")
    assert isinstance(operands, list | tuple)
    if "." in str(equation) or len(operands) < 2:
        return 0
    sizes = {
        i: s
        for t, o in zip(terms, operands, strict=True)
        for i, s in zip(t, _sizes(o), strict=True)
    }
    return prod(sizes.values())


def recurrent(node: fx.Node) -> int:
    """Of a recurrent layer: both weights for each step of each sample."""
    return prod(_sizes(node.args[0])[:2]) * sum(prod(_sizes(w)) for w in node.args[1:3])
