"""A written-out RMSNorm, weight * (x / sqrt(mean(x^2) + eps)), becomes one operator.

Transformers write it so. It is one kernel in ONNX Runtime in place of seven, and a step of a small
decoder consists mostly of such kernels.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops.fused import skip_rms_norm as fused
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import clone_as, commuted, is_call

aten = torch.ops.aten


def _normalized(node: Any) -> tuple[Any, Any] | None:
    """Return x and y if a node is x / sqrt(y), in any spelling."""
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return None
    if is_call(node, aten.div.Tensor) and is_call(node.args[1], aten.sqrt.default):
        return node.args[0], G.source(node, 1).args[0]
    for x, root in commuted(node, aten.mul.Tensor):
        if is_call(root, aten.rsqrt.default):
            return x, root.args[0]
        if is_call(root, aten.reciprocal.default) and is_call(root.args[0], aten.sqrt.default):
            return x, root.args[0].args[0]
    return None


def _eps(node: Any, x: fx.Node) -> float | None:
    """Return eps if a node is mean(x^2) + eps over the last dimension."""
    for mean, eps in commuted(node, aten.add.Tensor):
        if not isinstance(eps, float) or not is_call(mean, aten.mean.dim):
            continue
        axes, keepdim = list(G.argument(mean, 1, "dim") or ()), G.argument(mean, 2, "keepdim")
        square = mean.args[0]
        squared = (is_call(square, aten.pow.Tensor_Scalar) and square.args == (x, 2)) or (
            is_call(square, aten.mul.Tensor) and square.args == (x, x)
        )
        if squared and keepdim and axes in ([-1], [G.rank(x) - 1]):
            return eps
    return None


def _match(node: fx.Node) -> tuple[Any, ...] | None:
    """Return the arguments of the operator whose pattern ends at a node."""
    for weight, normalized in commuted(node, aten.mul.Tensor):
        parts = _normalized(normalized)
        if parts is None or not isinstance(weight, fx.Node) or weight.op != "get_attr":
            continue
        x, under = parts
        eps = _eps(under, x)
        single = G.value(x).dtype == G.value(weight).dtype == torch.float32
        if eps is not None and single and G.shape(weight) == (G.shape(x)[-1],):
            return x, list(G.shape(weight)), weight, eps
    return None


def _rewrite(module: fx.GraphModule, node: fx.Node, args: tuple[Any, ...]) -> None:
    G.replace(node, clone_as(node, aten.rms_norm.default, args))


rms_norm = pattern_pass("rms_norm", _match, _rewrite)


def _match_sum(node: fx.Node) -> tuple[Any, ...] | None:
    """Return the arguments of the operator if a node normalizes a sum."""
    if not is_call(node, aten.rms_norm.default) or len(node.args) != 4:
        return None
    total, _, weight, eps = node.args
    if not is_call(total, aten.add.Tensor) or weight is None or eps is None:
        return None
    assert isinstance(total, fx.Node)
    x, skip = total.args
    if not isinstance(x, fx.Node) or not isinstance(skip, fx.Node) or len(G.items(node, 1)) != 1:
        return None
    shape = str(G.shape(total))
    same = str(G.shape(x)) == shape and str(G.shape(skip)) == shape
    values = (G.value(n) for n in (x, skip, G.source(node, 2)))
    single = {value.dtype for value in values} == {torch.float32}
    return (x, skip, weight, eps) if same and single and G.rank(total) == 3 else None


def _rewrite_sum(module: fx.GraphModule, node: fx.Node, args: tuple[Any, ...]) -> None:
    total: Any = node.args[0]
    if not is_call(total, aten.add.Tensor):  # normalized twice, by the first time
        return
    first = min((n for n in total.users), key=list(module.graph.nodes).index)
    name = G.name_of(node)
    args = (*total.args, *args[2:])  # an operand may have become the sum of a norm before
    pair = G.add_call(first, fused, args, name, node)
    outputs = [G.add_call(first, operator.getitem, (pair, i), f"{name}.{i}", node) for i in (0, 1)]
    total.replace_all_uses_with(outputs[1], delete_user_cb=lambda user: user is not pair)
    G.replace(node, outputs[0])


skip_rms_norm = pattern_pass(
    "skip_rms_norm", _match_sum, _rewrite_sum, "one kernel adds a residual and normalizes the sum"
)
"""RMSNorm of the sum of a residual connection, which later layers of a decoder read, too."""
