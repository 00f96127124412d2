"""An RMSNorm that is written out, weight * (x / sqrt(mean(x^2) + eps)), becomes one operator.

Models of transformers have it so. It is one kernel in ONNX Runtime, where the parts are seven, and
a step of a small decoder is mostly such kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.passes.graph_pass import GraphPass
from qtool.passes.rewrite_rules import commuted, is_call

aten = torch.ops.aten


def _normal(node: Any) -> tuple[fx.Node, Any] | None:
    """x and what is under the root, in the forms that x / sqrt(...) has."""
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return None
    if is_call(node, aten.div.Tensor) and is_call(node.args[1], aten.sqrt.default):
        return node.args[0], node.args[1].args[0]  # type: ignore[return-value,union-attr]  # nodes
    for x, root in commuted(node, aten.mul.Tensor):
        if is_call(root, aten.rsqrt.default):
            return x, root.args[0]
        if is_call(root, aten.reciprocal.default) and is_call(root.args[0], aten.sqrt.default):
            return x, root.args[0].args[0]
    return None


def _least(node: Any, x: fx.Node) -> float | None:
    """eps, where a node is mean(x^2) + eps over the last dimension."""
    for mean, eps in commuted(node, aten.add.Tensor):
        if not isinstance(eps, float) or not is_call(mean, aten.mean.dim):
            continue
        axes, kept = list(G.argument(mean, 1, "dim") or ()), G.argument(mean, 2, "keepdim")
        square = mean.args[0]
        squared = (is_call(square, aten.pow.Tensor_Scalar) and square.args == (x, 2)) or (
            is_call(square, aten.mul.Tensor) and square.args == (x, x)
        )
        if squared and kept and axes in ([-1], [G.rank(x) - 1]):
            return eps
    return None


def _norm(node: fx.Node) -> tuple[Any, ...] | None:
    """The arguments of the operator that a node is the end of."""
    for weight, normal in commuted(node, aten.mul.Tensor):
        found = _normal(normal)
        if found is None or not isinstance(weight, fx.Node) or weight.op != "get_attr":
            continue
        x, under = found
        eps = _least(under, x)
        single = G.value(x).dtype == G.value(weight).dtype == torch.float32
        if eps is not None and single and G.shape(weight) == (G.shape(x)[-1],):
            return x, list(G.shape(weight)), weight, eps
    return None


def _rewrite(module: fx.GraphModule) -> int:
    found = [(n, args) for n in G.calls(module.graph) if (args := _norm(n)) is not None]
    for node, args in found:
        G.replace(node, G.add_call(node, aten.rms_norm.default, args, G.name_of(node), node, node))
    return len(found)


rms_norm = GraphPass(
    "rms_norm",
    _rewrite,
    lambda m: next((n for n in G.calls(m.graph) if _norm(n) is not None), None),
)
