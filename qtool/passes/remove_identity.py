"""Operators without effect at inference are removed: dropout, copies, full slices, same casts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.passes.graph_pass import GraphPass, first_match

aten = torch.ops.aten


def _always(node: fx.Node) -> bool:
    return True


def _inactive_dropout(node: fx.Node) -> bool:
    return not node.args[2] or node.args[1] in (0, 0.0)


def _same_meta(node: fx.Node) -> bool:
    """Return whether shape, dtype and device are those of the input."""
    x = node.args[0]
    if not isinstance(x, fx.Node):
        return False
    a, b = G.value(x), G.value(node)
    return G.same_sizes(a.shape, b.shape) and a.dtype == b.dtype and a.device == b.device


def _full_slice(node: fx.Node) -> bool:
    start, end, step = (G.argument(node, i, k) for i, k in ((2, "start"), (3, "end"), (4, "step")))
    return start in (None, 0) and end in (None, sys.maxsize) and step in (None, 1)


def _adds_nothing(node: fx.Node) -> bool:
    """Match x + 0, with which `sum` begins; 0 + x is the same in ATen."""
    return node.args[1] in (0, 0.0) and _same_meta(node)


def _changes_nothing(node: fx.Node) -> bool:
    return node.args[1] in (1, 1.0) and _same_meta(node)


IDENTITIES: Mapping[Any, Callable[[fx.Node], bool]] = {
    aten.dropout.default: _inactive_dropout,
    aten.feature_dropout.default: _inactive_dropout,
    aten.alpha_dropout.default: _inactive_dropout,
    aten.feature_alpha_dropout.default: _inactive_dropout,
    aten.clone.default: _always,
    aten.alias.default: _always,
    aten.detach.default: _always,
    aten.contiguous.default: _always,
    aten.lift_fresh_copy.default: _always,
    aten._to_copy.default: _same_meta,
    aten.to.dtype: _same_meta,
    aten.type_as.default: _same_meta,
    aten.reshape.default: _same_meta,
    aten.expand.default: _same_meta,
    aten.squeeze.dim: _same_meta,
    aten.squeeze.dims: _same_meta,
    aten.slice.Tensor: _full_slice,
    aten.add.Tensor: _adds_nothing,
    aten.sub.Tensor: _adds_nothing,
    aten.mul.Tensor: _changes_nothing,
    aten.div.Tensor: _changes_nothing,
}


def _is_identity(node: fx.Node) -> bool:
    test = IDENTITIES.get(node.target)
    return test is not None and isinstance(node.args[0], fx.Node) and test(node)


def _views_as_reshapes(module: fx.GraphModule) -> None:
    """Replace views, which need contiguous inputs: without copies, inputs may not be contiguous."""
    for node in G.calls(module.graph):
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default


def _rewrite(module: fx.GraphModule) -> int:
    _views_as_reshapes(module)
    identities = [n for n in G.calls(module.graph) if _is_identity(n)]
    for node in identities:
        G.replace(node, G.source(node))
    return len(identities)


remove_identity = GraphPass("remove_identity", _rewrite, first_match(_is_identity))
