"""Multiply-accumulates (MACs) from sizes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Sizes = Sequence[int]


def of_layer(result: Sizes, weight: Sizes) -> int:
    """MACs of a convolution or a linear layer: one row of the weight per output element."""
    return prod(result) * prod(weight[1:])


def of_transposed(x: Sizes, weight: Sizes) -> int:
    """MACs of a transposed convolution: every weight at each position of the input."""
    return prod(weight) * x[0] * prod(x[2:])


def of_product(result: Sizes, second: Sizes) -> int:
    """MACs of a matrix product."""
    return prod(result) * (second[-2] if len(second) > 1 else second[0])


def of_einsum(equation: str, operands: Sequence[Sizes]) -> int:
    """Product of the sizes of all indices; those of an ellipsis are aligned at its end."""
    if len(operands) < 2:
        return 0
    sizes: dict[str, int] = {}
    terms = equation.replace(" ", "").split("->")[0].split(",")
    for term, operand in zip(terms, operands, strict=True):
        before, ellipsis, after = term.partition("...")
        inside = len(operand) - len(before) - len(after)
        if inside < 0 or (inside and not ellipsis):
            raise ValueError(f"{equation} does not fit its operands")
        indices = [*before, *(f"...{i}" for i in range(inside, 0, -1)), *after]
        for index, size in zip(indices, operand, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    return prod(sizes.values())


def of_recurrent(steps: Sizes, *weights: Sizes) -> int:
    """MACs of a recurrent layer: every weight at each step of each sample."""
    return prod(steps) * sum(map(prod, weights))
