"""An inference BatchNorm is folded into the convolution or linear layer in front of it.

y = gamma * (W x + b - mean) / sqrt(var + eps) + beta is W' x + b' with, per output channel,
g = gamma / sqrt(var + eps), W' = g W, b' = g (b - mean) + beta. Computed in float64.

Every call gets separate weights, so a weight shared by two calls, or a module called twice with
different norms behind it, stays right; equal results are shared again. `why_not_folded` says which
norms stay.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import GraphPass, first_match
from qtool.passes.rewrite_rules import add_parameters, clone_as

aten = torch.ops.aten


LAYERS = frozenset({torch_ops.conv, torch_ops.conv_transpose, aten.linear.default})


def why_not_folded(norm: fx.Node) -> str:
    """Return why a BatchNorm stays, for the plan; "" for one that is folded."""
    layer = norm.args[0]
    assert isinstance(layer, fx.Node)
    if norm.args[5]:
        return "it uses the statistics of the batch"
    if layer.target not in LAYERS:
        return "no convolution or linear layer is in front"
    if len(layer.users) > 1:
        return f"{G.name_of(layer)} has another reader"
    if any(n is not None and n.op != "get_attr" for n in _constants(layer, norm)):
        return f"weights of {G.name_of(layer)}, or its own, are computed"
    if layer.target is aten.linear.default and G.rank(layer) != 2:
        return f"it normalizes dimension 1, and not the features of {G.name_of(layer)}"
    return ""


def _foldable(node: fx.Node) -> bool:
    return node.target is aten.batch_norm.default and not why_not_folded(node)


def _constants(layer: fx.Node, norm: fx.Node) -> tuple[Any, ...]:
    """Return the nodes of weight, bias, gamma, beta, mean and variance, each perhaps None."""
    return (layer.args[1], G.argument(layer, 2, "bias"), *norm.args[1:5])


def _rewrite(module: fx.GraphModule) -> int:
    folded: dict[tuple[Any, ...], list[fx.Node]] = {}
    count = 0
    while (norm := _next_foldable(module)) is not None:  # one by one: a norm may follow another
        layer = G.source(norm)
        key = (*_constants(layer, norm), norm.args[7], layout(layer))
        if key not in folded:
            folded[key] = _fold_parameters(module, layer, norm)
        args = (layer.args[0], *folded[key], *layer.args[3:])
        G.replace(norm, clone_as(layer, layer.target, args))
        module.graph.erase_node(layer)
        count += 1
    return count


def _fold_parameters(module: fx.GraphModule, layer: fx.Node, norm: fx.Node) -> list[fx.Node]:
    constants: list[Any] = [
        None if n is None else G.tensor(module, n) for n in _constants(layer, norm)
    ]
    eps: Any = norm.args[7]
    fold = partial(fold_statistics, eps=float(eps), layout=layout(layer))
    weight, bias = G.computed(fold, *constants)
    return add_parameters(module, G.name_of(layer), weight=weight, bias=bias)


def layout(layer: fx.Node) -> tuple[bool, int]:
    """Return (transposed, groups) of a weight; transposed: the input channels come first."""
    transposed = layer.target is torch_ops.conv_transpose
    return transposed, int(G.argument(layer, 6, "groups", 1)) if transposed else 1


def fold_statistics(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
    layout: tuple[bool, int] = (False, 1),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the folded weight and bias, in the dtype of `weight`.

    Args:
        weight: [out, in/groups, ...], or [in, out/groups, ...] if transposed.
        bias, gamma, beta: [out], or None for 0, 1 and 0.
        mean, variance: [out], the running statistics.
        eps: epsilon of the norm.
        layout: (transposed, groups).
    """
    transposed, groups = layout
    gain = (variance.double() + eps).rsqrt() * (1.0 if gamma is None else gamma.double())
    shift = -mean.double() if bias is None else bias.double() - mean.double()
    shift = shift * gain + (0.0 if beta is None else beta.double())
    w = weight.double()
    if transposed:
        grouped = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
        gains = gain.reshape(groups, 1, w.shape[1], *[1] * (w.dim() - 2))
        w = (grouped * gains).reshape(w.shape)
    else:
        w = w * gain.reshape(-1, *[1] * (w.dim() - 1))
    return w.to(weight.dtype), shift.to(weight.dtype)


_next_foldable = first_match(_foldable)
fold_batch_norm = GraphPass("fold_batch_norm", _rewrite, _next_foldable)
