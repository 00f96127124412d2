"""Products with a stored matrix become `aten::linear`, whose weight is [out, in].

A matrix computed from stored tensors alone (`x @ self.weight.T`) counts as stored: fold_constants
stores it afterwards. It may be the first operand: W x = (x^T W^T)^T. An einsum is a linear layer if
one of two operands is stored, and every letter is either summed over and in both, or kept and in
one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.passes.rewrite_rules import Rules, clone_as, insert_before, leading_sizes

aten = torch.ops.aten


def _addmm(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    bias, x, weight = node.args[:3]
    factors = [G.argument(node, i, name, 1) for i, name in ((3, "beta"), (4, "alpha"))]
    if factors != [1, 1] or not isinstance(bias, fx.Node):
        return None
    if _is_left(x, weight):
        product = _transposed_layer(node, x, weight, "product")
        return clone_as(node, aten.add.Tensor, (product, bias))
    if not _stored(bias):
        return None
    spread = _spread(node, bias)
    return _linear(node, x, weight, spread) if spread is not None else None


def _plain_layer(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Expand a scalar bias to all outputs; replace a layer without input features, one whose input
    is stored and whose weight is data, and one whose weight is a vector."""
    x, weight, bias = (
        G.argument(node, i, name) for i, name in enumerate(("input", "weight", "bias"))
    )
    if G.rank(weight) == 1:  # torch takes no bias then
        return _product(module, node) or clone_as(node, aten.matmul.default, (x, weight))
    if _is_left(x, weight):
        columns = insert_before(node, aten.transpose.int, (weight, 0, 1), "input")
        if bias is None:
            return _transposed_layer(node, x, columns, "")
        product = _transposed_layer(node, x, columns, "product")
        return clone_as(node, aten.add.Tensor, (product, bias))
    if isinstance(x, fx.Node) and G.shape(x)[-1] == 0:
        return _without_features(node, bias)
    spread = _spread(node, bias) if isinstance(bias, fx.Node) else None
    if spread is None or spread is bias:
        return None
    return clone_as(node, aten.linear.default, (*node.args[:2], spread))


def _without_features(node: fx.Node, bias: Any) -> fx.Node:
    """Return bias or zeros for a layer without features, whose rows no reshape could count."""
    zero = insert_before(node, aten.constant_pad_nd.default, (node.args[0], [0, 1]), "zero")
    if bias is None:
        bias = insert_before(node, aten.sum.dim_IntList, (node.args[1], [1]), "bias")
    return clone_as(node, aten.add.Tensor, (zero, bias))


def _spread(node: fx.Node, bias: fx.Node) -> fx.Node | None:
    """Return a bias [out] that is added to each row; None if rows get different ones."""
    sizes, out = list(G.shape(bias)), G.shape(node)[-1]
    if sizes == [out]:
        return bias
    if any(size != 1 for size in sizes[:-1]) or sizes[-1:] not in ([], [1], [out]):
        return None
    flat = insert_before(node, aten.reshape.default, (bias, [-1]), "bias.flat")
    return insert_before(node, aten.expand.default, (flat, [out]), "bias")


def _product(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x, weight = node.args[:2]
    if _is_left(x, weight):
        return _transposed_layer(node, x, weight, "")
    return _linear(node, x, weight, None) or _einsum(module, node)


def _is_left(matrix: Any, x: Any) -> bool:
    """Return whether the first operand of a product is a stored matrix, and the second is data."""
    both = isinstance(matrix, fx.Node) and isinstance(x, fx.Node)
    return both and G.rank(matrix) == 2 and _stored(matrix) and not _stored(x)


def _transposed_layer(node: fx.Node, matrix: Any, x: Any, part: str) -> fx.Node:
    """Return matrix @ x as a linear layer: the rows of the matrix are outputs.

    Args:
        node: node before which others are inserted.
        matrix: stored, [outputs, inputs].
        x: [..., inputs, columns], or [inputs].
        part: part of the product's name.
    """
    if G.rank(x) == 1:
        return insert_before(node, aten.linear.default, (x, matrix, None), part)
    columns = insert_before(node, aten.transpose.int, (x, -2, -1), "columns")
    result = insert_before(node, aten.linear.default, (columns, matrix, None), "linear")
    return insert_before(node, aten.transpose.int, (result, -2, -1), part)


def _linear(node: fx.Node, x: Any, weight: Any, bias: Any) -> fx.Node | None:
    if not _stored(weight) or G.rank(weight) not in (1, 2) or _stored(x) or G.rank(x) < 2:
        return None
    if G.rank(weight) == 1:  # a layer of one output
        row = insert_before(node, aten.unsqueeze.default, (weight, 0), "weight")
        column = insert_before(node, aten.linear.default, (x, row, bias), "linear")
        return insert_before(node, aten.squeeze.dim, (column, -1))
    transposed = insert_before(node, aten.transpose.int, (weight, 0, 1), "weight")
    return clone_as(node, aten.linear.default, (x, transposed, bias))


def _stored(node: fx.Node) -> bool:
    """Return whether a tensor is stored, or computed from stored ones alone."""
    if node.op != "call_function":
        return node.op == "get_attr"
    sources = node.all_input_nodes
    return bool(sources) and all(map(_stored, sources))


def product_letters(
    node: fx.Node,
) -> tuple[list[fx.Node], tuple[list[str], list[str], list[str]]] | None:
    """Return the operands of a product of two tensors, and the letters of both and of its result.

    None for another operator, and for operands that are broadcast.
    """
    if node.target is aten.einsum.default:
        operands, equation = G.sources(node, 1), str(node.args[0])
    elif node.target is aten.baddbmm.default:
        operands, equation = [G.source(node, 1), G.source(node, 2)], "bik,bkj->bij"
    elif node.target in (aten.matmul.default, aten.bmm.default):
        operands = [a for a in node.args[:2] if isinstance(a, fx.Node)]
        one = [G.rank(t) for t in operands] == [2, 3]
        equation = "ik,bkj->bij" if one else "...bik,bkj->...bij"
    else:
        return None
    if len(operands) != 2:
        return None
    terms = _letters(equation, [G.rank(t) for t in operands])
    return None if terms is None else (operands, terms)


def _einsum(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    if (product := product_letters(node)) is None:
        return None
    operands, terms = product
    stored = [_stored(t) for t in operands]
    if sum(stored) != 1:
        return None
    (x, weight), (data_term, weight_term, result) = operands, terms
    if stored[0]:
        x, weight, data_term, weight_term = weight, x, weight_term, data_term
    summed = [c for c in data_term if c in weight_term]
    rest, own = ([c for c in term if c not in summed] for term in (data_term, weight_term))
    unique = all(len(set(term)) == len(term) for term in terms)
    if not (unique and summed and rest and own and sorted(result) == sorted(rest + own)):
        return None
    return as_linear(node, (x, data_term), (weight, weight_term), (rest, own, summed, result))


def _letters(equation: str, ranks: Sequence[int]) -> tuple[list[str], list[str], list[str]] | None:
    """Return the letters of both operands and of the result; an ellipsis becomes digits."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != len(ranks):
        return None
    more = [r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True)]
    numbers = "".join(map(str, range(max(more))))
    if any(m != ("..." in t) * len(numbers) for t, m in zip(terms, more, strict=True)):
        return None  # dimensions of two operands that broadcast
    first, second, result = ([*t.replace("...", numbers)] for t in (*terms, right))
    return first, second, result


def as_linear(
    node: fx.Node,
    data: tuple[Any, list[str]],
    stored: tuple[Any, list[str]],
    letters: tuple[list[str], list[str], list[str], list[str]],
    bias: Any = None,
    part: str = "",
) -> fx.Node:
    """Return an einsum as a linear layer: move summed dimensions to the end, outputs back.

    Args:
        node: the einsum.
        data: the data and its letters.
        stored: the weight and its letters.
        letters: kept letters of the data, those of the weight, summed letters, letters of the
            result.
        bias: stored, [outputs], or None.
        part: part of the name of the layer, if there are several.
    """
    (x, data_term), (weight, weight_term), (rest, own, summed, kept) = data, stored, letters
    prefix, order = f"{part}." if part else "", rest + own
    sizes = dict(zip(weight_term, G.shape(weight), strict=True))
    x = _permuted(node, x, data_term, rest + summed, f"{prefix}input")
    if len(summed) > 1:
        x = insert_before(node, aten.flatten.using_ints, (x, len(rest), -1), f"{prefix}input.flat")
    weight = _permuted(node, weight, weight_term, own + summed, f"{prefix}weight.moved")
    matrix = [prod(int(sizes[c]) for c in part) for part in (own, summed)]
    if list(G.shape(weight)) != matrix:
        weight = insert_before(node, aten.reshape.default, (weight, matrix), f"{prefix}weight")
    last = kept == order and len(own) == 1
    name = part if last else f"{prefix}linear"
    result = insert_before(node, aten.linear.default, (x, weight, bias), name)
    if len(own) > 1:
        shape = [*leading_sizes(node, result, len(rest)), *(int(sizes[c]) for c in own)]
        name = f"{prefix}unflat" if kept != order else part
        result = insert_before(node, aten.reshape.default, (result, shape), name)
    return _permuted(node, result, order, kept, part)


def _permuted(node: fx.Node, x: fx.Node, order: list[str], new: list[str], part: str) -> fx.Node:
    if order == new:
        return x
    return insert_before(node, aten.permute.default, (x, [order.index(c) for c in new]), part)


PRODUCT_RULES: Rules = {
    aten.linear.default: _plain_layer,
    aten.addmm.default: _addmm,
    aten.mm.default: _product,
    aten.matmul.default: _product,
    aten.mv.default: _product,
    aten.einsum.default: _einsum,
}
