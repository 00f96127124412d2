"""A recurrent cell (LSTMCell, GRUCell, RNNCell) becomes two linear layers and elementwise gates."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.passes.rewrite_rules import Rule, insert_before

aten = torch.ops.aten


def _layers(node: fx.Node, state: Any) -> tuple[fx.Node, fx.Node]:
    """Return the gates' inputs from the input and from the state, [..., gates x hidden] each."""
    x, _, *weights = node.args
    w_input, w_state, b_input, b_state = [*weights, None, None][:4]
    of_input = insert_before(node, aten.linear.default, (x, w_input, b_input), "input")
    of_state = insert_before(node, aten.linear.default, (state, w_state, b_state), "state")
    return of_input, of_state


def _gate(node: fx.Node, x: fx.Node, index: int, size: int, part: str) -> fx.Node:
    last = G.rank(x) - 1
    return insert_before(node, aten.slice.Tensor, (x, last, index * size, (index + 1) * size), part)


def _gru(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    h = G.source(node, 1)
    size = int(G.shape(h)[-1])
    of_input, of_state = _layers(node, h)
    a = [_gate(node, of_input, i, size, f"input{i}") for i in range(3)]
    b = [_gate(node, of_state, i, size, f"state{i}") for i in range(3)]
    reset = _sum(node, aten.sigmoid.default, a[0], b[0], "reset")
    update = _sum(node, aten.sigmoid.default, a[1], b[1], "update")
    gated = insert_before(node, aten.mul.Tensor, (reset, b[2]), "told")
    new = _sum(node, aten.tanh.default, a[2], gated, "new")
    kept = insert_before(node, aten.sub.Tensor, (h, new), "less")
    return insert_before(
        node, aten.add.Tensor, (insert_before(node, aten.mul.Tensor, (kept, update), "kept"), new)
    )


def _lstm(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    if any(u.target is not operator.getitem for u in users):
        return None
    h, c = G.sources(node, 1)
    size = int(G.shape(h)[-1])
    gates = insert_before(node, aten.add.Tensor, _layers(node, h), "gates")
    i, f, g, o = (_gate(node, gates, k, size, part) for k, part in enumerate("ifgo"))
    sigmoid, tanh = aten.sigmoid.default, aten.tanh.default
    kept = insert_before(
        node, aten.mul.Tensor, (insert_before(node, sigmoid, (f,), "forget"), c), "kept"
    )
    new = insert_before(node, sigmoid, (i,), "take"), insert_before(node, tanh, (g,), "new")
    cell = insert_before(
        node, aten.add.Tensor, (kept, insert_before(node, aten.mul.Tensor, new, "added")), "cell"
    )
    shown = (
        insert_before(node, sigmoid, (o,), "show"),
        insert_before(node, tanh, (cell,), "cell.tanh"),
    )
    hidden = insert_before(node, aten.mul.Tensor, shown)
    for user in users:
        G.replace(user, hidden if user.args[1] == 0 else cell)
    return hidden


def _plain(activation: Any) -> Rule:
    def rule(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        return _sum(node, activation, *_layers(node, node.args[1]), "")

    return rule


def _sum(node: fx.Node, activation: Any, a: fx.Node, b: fx.Node, part: str) -> fx.Node:
    both = insert_before(node, aten.add.Tensor, (a, b), f"{part}.sum" if part else "sum")
    return insert_before(node, activation, (both,), part)


CELL_RULES: Mapping[Any, Rule] = {
    aten.gru_cell.default: _gru,
    aten.lstm_cell.default: _lstm,
    aten.rnn_tanh_cell.default: _plain(aten.tanh.default),
    aten.rnn_relu_cell.default: _plain(aten.relu.default),
}
