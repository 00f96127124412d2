"""Operands that are scalars at run time (a size, `.item()`) become tensors, as ONNX requires.

Reductions over everything get explicit dimensions, which torch.onnx requires.
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
    """Return the operator with tensors of one float type: ONNX does not mix floats and integers,
    and a scalar has no scale."""
    operands = node.args[:2]
    first = next((a for a in operands if G.is_float(a)), None)
    if first is None or not any(map(_is_scalar, operands)):
        return None
    tensors = [_tensor(node, first, a) if _is_scalar(a) else a for a in operands]
    target = _SCALAR.get(node.target, node.target)
    new = insert_before(node, target, (*tensors, *node.args[2:]))
    if node.kwargs:
        new.kwargs = dict(node.kwargs)
        G.infer(new)
    return new


def _is_scalar(x: Any) -> bool:
    return isinstance(x, fx.Node) and not G.is_tensor(x)


def _tensor(node: fx.Node, like: Any, number: Any) -> fx.Node:
    tensor = insert_before(node, aten.scalar_tensor.default, (number,), "number")
    tensor.kwargs = {"dtype": G.value(like).dtype}
    return G.infer(tensor)


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
