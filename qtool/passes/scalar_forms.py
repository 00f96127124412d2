"""Operands that are numbers when the model runs (a size, `.item()`) as tensors, as ONNX has them.

And reductions over everything, which torch.onnx writes only with their dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.passes.rewrite_rules import Rule, insert_before

aten = torch.ops.aten


_SCALAR = {
    aten.rsub.Scalar: aten.rsub.Tensor,
    aten.pow.Tensor_Scalar: aten.pow.Tensor_Tensor,
    aten.remainder.Scalar: aten.remainder.Tensor,
    aten.fmod.Scalar: aten.fmod.Tensor,
    **{
        getattr(aten, name).Scalar: getattr(aten, name).Tensor
        for name in ("gt", "ge", "lt", "le", "eq", "ne")
    },
}


def with_tensors(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """The operator on tensors of one type alone: between floats and an integer there is none in
    ONNX, and what is no tensor has no scale."""
    given = node.args[:2]
    first = next((a for a in given if G.is_float(a)), None)
    if first is None or not any(map(_is_number, given)):
        return None
    tensors = [_tensor(node, first, a) if _is_number(a) else a for a in given]
    target = _SCALAR.get(node.target, node.target)
    found = insert_before(node, target, (*tensors, *node.args[2:]))
    if node.kwargs:
        found.kwargs = dict(node.kwargs)
        G.infer(found)
    return found


def _is_number(x: Any) -> bool:
    return isinstance(x, fx.Node) and not G.is_tensor(x)


def _tensor(node: fx.Node, like: Any, number: Any) -> fx.Node:
    found = insert_before(node, aten.scalar_tensor.default, (number,), "number")
    found.kwargs = {"dtype": G.value(like).dtype}
    return G.infer(found)


def _over_all(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x = node.args[0]
    if G.argument(node, 1, "dim") or not isinstance(x, fx.Node) or not G.rank(x):
        return None
    keep = bool(G.argument(node, 2, "keepdim", False))
    return insert_before(node, node.target, (x, list(range(G.rank(x))), keep))


SCALAR_RULES: Mapping[Any, Rule] = {
    aten.mul.Tensor: with_tensors,
    aten.div.Tensor: with_tensors,
    **dict.fromkeys(_SCALAR, with_tensors),
    aten.amax.default: _over_all,
    aten.amin.default: _over_all,
}
