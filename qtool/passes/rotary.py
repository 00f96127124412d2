"""A written-out rotary embedding, x * cos + rotate_half(x) * sin, becomes one operator.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, in the form of
transformers: cos and sin contain each angle twice, one half of the features after the other. ONNX
Runtime has one kernel for it in its own domain, in place of seven for the queries and seven for the
keys of each layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops.attention import rotary_embedding
from qtool.passes.graph_pass import GraphPass, first_match
from qtool.passes.rewrite_rules import clone_as, commuted, is_call

aten = torch.ops.aten
_FEATUREWISE = frozenset({aten.cos.default, aten.sin.default, aten._to_copy.default})


def _rotated_half(node: Any) -> fx.Node | None:
    """Return x if a node is rotate_half(x): minus the second half, then the first."""
    parts: Any = node.args[0] if is_call(node, aten.cat.default) else ()
    if len(parts) != 2:
        return None
    minus, first = parts
    last = G.rank(node) - 1
    if not is_call(minus, aten.neg.default) or not is_call(first, aten.slice.Tensor):
        return None
    second, x = minus.args[0], first.args[0]
    if not is_call(second, aten.slice.Tensor) or second.args[0] is not x:
        return None
    width = G.shape(x)[-1]
    if not isinstance(width, int) or width % 2 or _axis(node) not in (-1, last):
        return None
    front = first.args[1:] == (last, 0, width // 2)
    back = second.args[1:3] == (last, width // 2) and second.args[3] >= width
    return x if front and back else None


def _axis(cat: fx.Node) -> Any:
    return G.argument(cat, 1, "dim", 0)


def _is_repeated(node: Any) -> bool:
    """Return whether both halves of a tensor's features are equal by construction."""
    while isinstance(node, fx.Node):
        if is_call(node, aten.cat.default):
            parts: Any = node.args[0]
            same = len(parts) == 2 and parts[0] is parts[1]
            return same and _axis(node) in (-1, G.rank(node) - 1)
        if not _is_featurewise(node):
            return False
        node = node.args[0]
    return False


def _is_featurewise(node: fx.Node) -> bool:
    scaled = is_call(node, aten.mul.Tensor) and isinstance(node.args[1], int | float)
    return node.target in _FEATUREWISE or scaled


def _parts(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """Return x [batch, heads, time, features], cos and sin [batch or 1, time, features]."""
    for plain, rotated in commuted(node, aten.add.Tensor):
        for x, cos in commuted(plain, aten.mul.Tensor):
            for other, sin in commuted(rotated, aten.mul.Tensor):
                if isinstance(x, fx.Node) and _rotated_half(other) is x and _fits(x, cos, sin):
                    return x, cos.args[0], sin.args[0]
    return None


def _fits(x: fx.Node, *angles: Any) -> bool:
    if G.rank(x) != 4 or G.value(x).dtype != torch.float32:
        return False
    batch, _, *sizes = G.shape(x)
    for each in angles:
        if not is_call(each, aten.unsqueeze.default) or each.args[1] not in (1, -3):
            return False
        shape = G.shape(each)
        if len(shape) != 4 or not _is_repeated(each.args[0]) or not G.same_sizes(shape[2:], sizes):
            return False
        if not G.same_sizes(shape[:1], (1,)) and not G.same_sizes(shape[:1], (batch,)):
            return False
        if not G.same_sizes(shape[:1], G.shape(angles[0])[:1]):
            return False
    return True


def _half(node: fx.Node, halves: dict[fx.Node, fx.Node]) -> fx.Node:
    """Return the first half of a tensor whose halves are equal, computed without the second."""
    if node in halves:
        return halves[node]
    if node.target is aten.cat.default:
        half = G.sources(node)[0]
    else:
        source = _half(G.source(node), halves)
        name = f"{G.name_of(node)}.half"
        half = G.add_call(node, node.target, (source, *node.args[1:]), name, node)
        half.kwargs = node.kwargs
        G.infer(half)
    halves[node] = half
    return half


def _rewrite(module: fx.GraphModule) -> int:
    matches = [(n, parts) for n in G.calls(module.graph) if (parts := _parts(n)) is not None]
    halves: dict[fx.Node, fx.Node] = {}
    for node, (x, *angles) in matches:
        args = (x, *(_half(each, halves) for each in angles))
        G.replace(node, clone_as(node, rotary_embedding, args))
    return len(matches)


rotary = GraphPass(
    "rotary",
    _rewrite,
    first_match(_parts),
    reason="one kernel of the runtime replaces seven",
    needs_whole_graph=True,  # all layers share the angles
)
