"""Table lookups become `qtool::embedding`, and embedding bags a lookup with a reduction.

An embedding bag is a sum, mean or maximum over rows. Where all bags have the length of the rows of
a matrix of ids, it becomes a reduction over a dimension; where bags start at offsets, a product
with a matrix that is 1 where a row is in a bag.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.rewrite_rules import Rules, clone_as, insert_before

aten = torch.ops.aten
_SUM, _MEAN, _MAX = 0, 1, 2


@dataclass(frozen=True)
class _Bag:
    """A call of aten::embedding_bag; ids and weights [samples], offsets [bags]."""

    table: fx.Node
    ids: fx.Node
    offsets: fx.Node
    mode: int
    weights: fx.Node | None
    with_last: bool
    padding: int | None


def _embedding(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    return clone_as(node, torch_ops.embedding, (node.args[1], node.args[0]))


def _read(node: fx.Node) -> _Bag:
    arguments: Any = (*node.args, *[None] * 9)
    table, ids, offsets, _, mode, _, weights, with_last, padding = arguments[:9]
    known = padding if padding is not None and padding >= 0 else None
    return _Bag(table, ids, offsets, mode or _SUM, weights, bool(with_last), known)


def _embedding_bag(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    if any(u.target is not operator.getitem or u.args[1] != 0 for u in users):
        return None
    bag = _read(node)
    matrix = _matrix(bag)
    if bag.padding is not None or (matrix is None and bag.mode == _MAX):
        return None  # a padding row; a maximum, which is not a product
    result = _by_offsets(node, bag) if matrix is None else _by_rows(node, bag, matrix)
    for user in users:
        G.replace(user, result)
    return result


def _matrix(bag: _Bag) -> fx.Node | None:
    """Return the ids [bags, length] before flattening if the offsets are multiples of length."""
    ids, offsets = bag.ids, bag.offsets
    source = ids.args[0] if ids.target is aten.reshape.default else None
    if not isinstance(source, fx.Node) or G.rank(source) != 2 or G.rank(ids) != 1:
        return None
    length = G.shape(source)[1]
    steps = offsets.args if offsets.target is aten.arange.start_step else ()
    return source if steps[::2] == (0, length) else None


def _by_rows(node: fx.Node, bag: _Bag, ids: fx.Node) -> fx.Node:
    rows = insert_before(node, torch_ops.embedding, (ids, bag.table), "rows")
    if bag.weights is not None:
        sizes = [-1, int(G.shape(ids)[1]), 1]
        column = insert_before(node, aten.reshape.default, (bag.weights, sizes), "weights")
        rows = insert_before(node, aten.mul.Tensor, (rows, column), "weighted")
    reductions = {_SUM: aten.sum.dim_IntList, _MEAN: aten.mean.dim, _MAX: aten.amax.default}
    return insert_before(node, reductions[bag.mode], (rows, [1]))


def _by_offsets(node: fx.Node, bag: _Bag) -> fx.Node:
    """Row `i` is in bag `b` from the offset of `b` up to the next offset."""
    rows = insert_before(node, torch_ops.embedding, (bag.ids, bag.table), "rows")
    ones = insert_before(node, aten.ones_like.default, (bag.ids,), "ones")
    count = insert_before(node, aten.cumsum.default, (ones, 0), "count")  # index plus one
    begins = insert_before(node, aten.unsqueeze.default, (bag.offsets, 1), "begins")
    begun = insert_before(node, aten.gt.Tensor, (count, begins), "begun")
    begun = insert_before(node, aten.to.dtype, (begun, torch.float32), "begun.float")
    if bag.with_last:
        later = insert_before(node, aten.slice.Tensor, (begun, 0, 1, 2**63 - 1), "later")
        begun = insert_before(node, aten.slice.Tensor, (begun, 0, 0, -1), "bags")
    else:
        shifted = insert_before(node, aten.slice.Tensor, (begun, 0, 1, 2**63 - 1), "shifted")
        later = insert_before(
            node, aten.constant_pad_nd.default, (shifted, [0, 0, 0, 1], 0.0), "later"
        )
    inside = insert_before(node, aten.sub.Tensor, (begun, later), "inside")
    if bag.mode == _MEAN:
        sizes = insert_before(node, aten.sum.dim_IntList, (inside, [1], True), "sizes")
        sizes = insert_before(node, aten.clamp.default, (sizes, 1.0, None), "not.empty")
        inside = insert_before(node, aten.div.Tensor, (inside, sizes), "shares")
    if bag.weights is not None:
        inside = insert_before(node, aten.mul.Tensor, (inside, bag.weights), "weights")
    return insert_before(node, aten.matmul.default, (inside, rows))


LOOKUP_RULES: Rules = {
    aten.embedding.default: _embedding,
    aten.embedding_bag.default: _embedding_bag,
    aten.embedding_bag.padding_idx: _embedding_bag,
}
