"""The experts of a mixture become two layers, and these one operator in a file.

transformers gathers the matrices of each token's experts and multiplies token by token. The same
products are two layers with stacked weights, whose rows each belong to one expert: layers that can
be planned, calibrated and rounded like any other. ONNX Runtime's kernel, QMoE, computes both with
the activation function between them and the sum behind them. It reads gate and up row by row in
turn, so their rows are stored in that order from the start.

Experts with biases, with another function than SiLU or without a gate stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument, Target

from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.graph import torch_ops
from qtool.core.ops.fused import routed_experts as fused
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import is_call

aten = torch.ops.aten

Product = tuple[fx.Node, fx.Node, fx.Node]
"""Rows, stored weights and ids of a product of rows with the matrices of their experts."""

_LAYERS = (torch_ops.expert_linear, torch_ops.expert_nbits)


@dataclass(frozen=True, eq=False)
class Experts:
    """The calls of a mixture of experts.

    Attributes:
        tokens: its input, [tokens, features].
        chosen, shares: experts of each token, and the weights of their results.
        up: the products of gate and up.
        halves: the parts of `up`, gate first.
        down: the products behind the activation function.
    """

    tokens: fx.Node
    chosen: fx.Node
    shares: fx.Node
    up: fx.Node
    halves: tuple[fx.Node, fx.Node]
    down: fx.Node


def _call(node: Argument, target: Target) -> fx.Node | None:
    """Return a node if it calls the operator."""
    return node if is_call(node, target) else None


def _weighted_sum(node: fx.Node) -> tuple[Any, fx.Node] | None:
    """Return products and shares, if a node sums the weighted results of each token's experts."""
    total = _call(node, aten.sum.dim_IntList)
    if total is None or total.args[1:] != ([1],):
        return None
    split = _call(total.args[0], aten.reshape.default)
    product = None if split is None else _call(split.args[0], aten.mul.Tensor)
    column = None if product is None else _call(product.args[1], aten.unsqueeze.default)
    if split is None or product is None or column is None or column.args[1] not in (-1, 1):
        return None
    shares = _flattened(column.args[0])
    if shares is None or G.rank(split) != 3 or G.shape(shares)[1] != G.shape(split)[1]:
        return None
    return product.args[0], shares


def _flattened(node: Argument) -> fx.Node | None:
    """Return x if a node is x [tokens, count] in one dimension."""
    flat = _call(node, aten.reshape.default)
    if flat is None or flat.args[1] != [-1]:
        return None
    x = G.source(flat)
    return x if G.rank(x) == 2 else None


def _gated(node: fx.Node) -> tuple[fx.Node, tuple[fx.Node, fx.Node]] | None:
    """Return x and its halves, if a node is silu(gate of x) * up of x."""
    product = _call(node, aten.mul.Tensor)
    gate = None if product is None else _call(product.args[0], aten.silu.default)
    if product is None or gate is None:
        return None
    first, second = (_call(n, aten.slice.Tensor) for n in (gate.args[0], product.args[1]))
    if first is None or second is None:
        return None
    source, halves = G.source(first), (first, second)
    if any(half.args[:2] not in ((source, -1), (source, 1)) for half in halves):
        return None
    width = int(G.shape(source)[-1])
    bounds: Any = [half.args[2:] for half in halves]
    rows = [range(width)[slice(*each)] for each in bounds]
    if source.target in _LAYERS:
        parts = [range(0, width, 2), range(1, width, 2)]
    else:
        parts = [range(width // 2), range(width // 2, width)]
    return (source, halves) if G.rank(source) == 2 and rows == parts else None


def _gathered(node: Argument) -> Product | None:
    """Return a product with matrices that are gathered for each row."""
    squeezed = _call(node, aten.squeeze.dim)
    product = None if squeezed is None else _call(squeezed.args[0], aten.bmm.default)
    if squeezed is None or product is None or squeezed.args[1] not in (-1, 2):
        return None
    matrices = _call(product.args[0], aten.index_select.default)
    column = _call(product.args[1], aten.unsqueeze.default)
    if matrices is None or column is None or matrices.args[1] != 0:
        return None
    weight = G.source(matrices)
    if weight.op != "get_attr" or column.args[1] not in (-1, 2):
        return None
    return G.source(column), weight, G.source(matrices, 2)


def _on_codes(node: Argument) -> Product | None:
    """Return a product on codes."""
    layer = _call(node, torch_ops.expert_nbits)
    return None if layer is None else (G.source(layer), G.source(layer, 1), G.source(layer, 4))


def _match(product: Callable[[Argument], Product | None], node: fx.Node) -> Experts | None:
    if (weighted := _weighted_sum(node)) is None:
        return None
    down, shares = weighted
    second = product(down)
    gated = None if second is None else _gated(second[0])
    first = None if gated is None else product(gated[0])
    if second is None or gated is None or first is None or first[2] is not second[2]:
        return None
    repeated, chosen = _call(first[0], aten.repeat_interleave.self_int), _flattened(first[2])
    if repeated is None or chosen is None:
        return None
    tokens, count = G.source(repeated), repeated.args[1]
    counts = {G.shape(each)[1] for each in (chosen, shares)}
    if counts != {count} or repeated.args[2] != 0 or G.value(tokens).dtype != torch.float32:
        return None
    return Experts(tokens, chosen, shares, gated[0], gated[1], down)


def _stack(module: fx.GraphModule, node: fx.Node, experts: Experts) -> None:
    """Replace gathered products by layers."""
    up = _add_layer(module, experts.up, in_turn=True)
    for start, half in enumerate(experts.halves):
        args = (up, -1, start, int(G.shape(up)[-1]), 2)
        G.replace(half, G.add_call(half, half.target, args, G.name_of(half), half, half))
    down = _add_layer(module, experts.down, in_turn=False)
    experts.down.replace_all_uses_with(down)


def _add_layer(module: fx.GraphModule, node: fx.Node, in_turn: bool) -> fx.Node:
    """Return a layer in place of a gathered product.

    Args:
        in_turn: rows of the two halves of its outputs are stored in turn.
    """
    parts = _gathered(node)
    assert parts is not None  # it is matched
    rows, weight, ids = parts

    def stack(values: torch.Tensor) -> list[torch.Tensor]:
        if in_turn:
            values = values.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        return [values.flatten(0, 1)]

    stored, name = G.tensor(module, weight), G.name_of(weight)
    (data,) = G.computed(stack, stored)
    head = next(iter(module.graph.nodes))
    own = G.add_tensor(module, head, G.as_parameter(data), f"{name}.weight")
    return G.add_call(node, torch_ops.expert_linear, (rows, own, ids, len(stored)), name, node)


experts = pattern_pass(
    "experts",
    partial(_match, _gathered),
    _stack,
    "experts are layers with integer weights, and one kernel computes them",
)


def _fuse(module: fx.GraphModule, node: fx.Node, experts: Experts) -> None:
    layers = (experts.up, experts.down)
    tensors = [t for layer in layers for t in _stored(module, layer)]
    name = value_names.joint_layer([G.name_of(layer) for layer in layers])
    args = (experts.tokens, experts.chosen, experts.shares, *tensors, experts.up.args[6])
    G.replace(node, G.add_call(node, fused, args, name, node))


def _stored(module: fx.GraphModule, layer: fx.Node) -> list[fx.Node | None]:
    """Return codes, scales and zero points of a layer as [experts, outputs, ...]."""
    head, count = next(iter(module.graph.nodes)), G.integer(layer, 5)

    def split(values: torch.Tensor) -> list[torch.Tensor]:
        return [values.reshape(count, len(values) // count, -1).contiguous()]

    nodes: list[fx.Node | None] = []
    for at in (1, 2, 3):
        if layer.args[at] is None:  # no zero points
            nodes.append(None)
            continue
        stored = G.source(layer, at)
        (data,) = G.computed(split, G.tensor(module, stored))
        nodes.append(G.add_tensor(module, head, data, G.name_of(stored)))
    return nodes


routed_experts = pattern_pass(
    "routed_experts",
    partial(_match, _on_codes),
    _fuse,
    "one kernel computes the experts of each token",
)
