"""Multiply-accumulates of a node, for one sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from torch import fx

from qtool import graph as G
from qtool.plan.ops import row_of

__all__ = ["macs"]


def macs(node: fx.Node, batch: int) -> int:
    """MACs of one sample at the captured sizes; 0 for what is no layer with weights and no product
    of matrices."""
    row = row_of(node)
    count = _COUNTS.get(row.key) if row is not None else None
    return count(node) // batch if count is not None else 0


def _sizes(argument: Any) -> list[int]:
    assert isinstance(argument, fx.Node)
    return [G.hint(s) for s in G.shape(argument)]


def _layer(node: fx.Node) -> int:
    return prod(_sizes(node)) * prod(_sizes(node.args[1])[1:])


def _transposed(node: fx.Node) -> int:
    source = _sizes(node.args[0])
    return prod(_sizes(node.args[1])) * source[0] * prod(source[2:])


def _matmul(node: fx.Node) -> int:
    second = _sizes(node.args[_second(node)])
    return prod(_sizes(node)) * (second[-2] if len(second) > 1 else second[0])


def _second(node: fx.Node) -> int:
    """Where the second matrix stands: behind what baddbmm adds to the product."""
    row = row_of(node)
    assert row is not None
    return row.inputs[1]


def _attention(node: fx.Node) -> int:
    """Queries times keys, and the weights times values."""
    query, key, value = (_sizes(a) for a in node.args[:3])
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _einsum(node: fx.Node) -> int:
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


def _recurrent(node: fx.Node) -> int:
    return prod(_sizes(node.args[0])[:2]) * sum(prod(_sizes(w)) for w in node.args[1:3])


_COUNTS: Mapping[str, Callable[[fx.Node], int]] = {
    "attention": _attention,
    "conv": _layer,
    "conv_transpose": _transposed,
    "einsum": _einsum,
    "gru": _recurrent,
    "linear": _layer,
    "lstm": _recurrent,
    "matmul": _matmul,
    "rnn": _recurrent,
}
