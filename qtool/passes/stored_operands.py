"""Arithmetic with numbers becomes products and sums with stored tensors.

Integer runtimes multiply and add two tensors of codes, and often nothing else: x / 255 is x times
the stored 1 / 255, 1 - x is x times -1 plus 1, a square is x times x, a BatchNorm of vectors a
product and a sum, which a hard-sigmoid clamps. A stored tensor of one value has an exact code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from qtool.core import graph as G
from qtool.passes.fold_batch_norm import fold_statistics
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import add_parameters, clone_as, insert_before

aten = torch.ops.aten
_MUL, _ADD, _NORM, _HARD = (
    aten.mul.Tensor,
    aten.add.Tensor,
    aten.batch_norm.default,
    aten.hardsigmoid.default,
)
_OTHERS = (
    aten.sub.Tensor,
    aten.div.Tensor,
    aten.rsub.Scalar,
    aten.neg.default,
    aten.square.default,
    _HARD,
)


def _is_stored(value: Argument) -> bool:
    return isinstance(value, fx.Node) and value.op == "get_attr" and G.is_float(value)


def _is_computed(value: Argument) -> bool:
    return isinstance(value, fx.Node) and value.op != "get_attr" and G.is_float(value)


def _is_number(value: Argument) -> bool:
    return isinstance(value, int | float)


def _match(node: fx.Node) -> bool:
    if not G.is_float(node) or node.kwargs:
        return False
    if node.target is _NORM:
        return G.rank(node) == 2 and all(c is None or _is_stored(c) for c in node.args[1:5])
    operands = node.args[:2]
    if node.target not in (_MUL, _ADD, *_OTHERS) or not any(map(_is_computed, operands)):
        return False
    if not all(_is_computed(a) or _is_stored(a) or _is_number(a) for a in operands):
        return False
    if node.target in (_MUL, _ADD):
        return any(map(_is_number, operands))
    return node.target is not aten.div.Tensor or not (_is_computed(operands[1]) or operands[1] == 0)


def _steps(module: fx.GraphModule, node: fx.Node) -> tuple[Any, Any, Any]:
    """Return x, the factor and the summand of x * factor + summand; None: no such step."""
    a, b, *_ = (*node.args, None)

    def stored(value: Any, change: Callable[[Any], Any]) -> Any:
        if not isinstance(value, fx.Node):
            return change(float(value))
        return G.computed(lambda tensor: [change(tensor)], G.tensor(module, value))[0]

    if node.target is _NORM:
        return a, *_norm(module, node)
    if node.target in (_MUL, _ADD):
        x, constant = (a, b) if _is_computed(a) else (b, a)
        return (x, constant, None) if node.target is _MUL else (x, None, constant)
    if node.target in (aten.neg.default, aten.square.default):
        return a, -1 if node.target is aten.neg.default else a, None
    if node.target is _HARD:
        return a, 1 / 6, 0.5
    if node.target is aten.div.Tensor:
        return a, stored(b, lambda c: 1 / c), None
    if node.target is aten.rsub.Scalar:
        a, b = b, a
    if _is_computed(b):
        return b, -1, a
    return a, None, stored(b, lambda c: -c)


def _norm(module: fx.GraphModule, norm: fx.Node) -> Any:
    """Return the factor and the summand of a BatchNorm, [channels]."""
    constants = [G.tensor(module, c) if isinstance(c, fx.Node) else None for c in norm.args[1:5]]
    eps: Any = norm.args[7]

    def fold(gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
        return fold_statistics(torch.ones_like(mean), None, gamma, beta, mean, variance, eps)

    return G.computed(fold, *constants)


def _rewrite(module: fx.GraphModule, node: fx.Node, _: bool) -> None:
    x, *operands = _steps(module, node)
    steps = [(n, s) for n, s in zip((_MUL, _ADD), operands, strict=True) if s is not None]
    for target, operand in steps:
        if not isinstance(operand, fx.Node):
            part = "factor" if target is _MUL else "summand"
            value = operand if isinstance(operand, torch.Tensor) else torch.tensor([float(operand)])
            (operand,) = add_parameters(module, G.name_of(node), **{part: value})
        if target is not steps[-1][0] or node.target is _HARD:
            x = insert_before(node, target, (x, operand), "scaled" if target is _MUL else "moved")
    last = (aten.clamp.default, (x, 0, 1)) if node.target is _HARD else (target, (x, operand))
    G.replace(node, clone_as(node, *last))


stored_operands = pattern_pass(
    "stored_operands",
    _match,
    _rewrite,
    "numbers are stored tensors, which integer kernels multiply and add",
)
