"""A recurrent network becomes one operator per layer, with weights in the layout of ONNX.

ATen's lstm, gru and rnn contain all layers, with gates in another order. Initial states of zeros,
which every call without states has, are left out: they are the runtime's default.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops import recurrent as layers
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import add_parameters, insert_before

aten = torch.ops.aten
_KINDS: Mapping[Any, tuple[str, Any, tuple[str, ...]]] = {
    aten.lstm.input: ("lstm", layers.lstm, ()),
    aten.gru.input: ("gru", layers.gru, ()),
    aten.rnn_tanh.input: ("rnn", layers.rnn, ("tanh",)),
    aten.rnn_relu.input: ("rnn", layers.rnn, ("relu",)),
}


@dataclass(frozen=True)
class _Call:
    """A call of ATen's operator; weights layer by layer and direction by direction."""

    x: fx.Node
    states: Sequence[fx.Node]
    weights: Sequence[Sequence[fx.Node]]
    directions: int
    batch_first: bool


def _match(node: fx.Node) -> _Call | None:
    """Return the call, or None if ONNX has no form for it: projections, computed weights."""
    if node.target not in _KINDS:
        return None
    arguments: Any = node.args
    x, states, flat, biased, layers, _, _, both, batch_first = arguments
    states = states if isinstance(states, list | tuple) else [states]
    size, count = 4 if biased else 2, 2 if both else 1
    if len(flat) != size * layers * count or any(w.op != "get_attr" for w in flat):
        return None
    weights = [flat[i : i + size] for i in range(0, len(flat), size)]
    return _Call(x, states, weights, count, bool(batch_first))


def _rewrite(module: fx.GraphModule, node: fx.Node, _: _Call) -> None:
    call = _match(node)  # again: the layer before it may have other results now
    assert call is not None
    kind, target, options = _KINDS[node.target]
    x = (
        insert_before(node, aten.transpose.int, (call.x, 0, 1), "time")
        if call.batch_first
        else call.x
    )
    count, last = len(call.weights) // call.directions, []
    for layer in range(count):
        part = f"layer{layer}" if count > 1 else ""
        begin = layer * call.directions
        weights = call.weights[begin : begin + call.directions]
        tensors = _onnx_weights(module, node, kind, weights, part)
        states = [
            _state(node, s, begin, call.directions, f"{part}.state{i}".lstrip("."))
            for i, s in enumerate(call.states)
        ]
        whole = insert_before(node, target, (x, *tensors, *states, *options), part)
        results = [
            insert_before(node, operator.getitem, (whole, i), f"{part}.{i}".lstrip("."))
            for i in range(1 + len(call.states))
        ]
        x = _one_row(node, results[0], call.directions, part)
        last.append(results[1:])
    y = insert_before(node, aten.transpose.int, (x, 0, 1), "batch") if call.batch_first else x
    finals = [
        parts[0]
        if count == 1
        else insert_before(node, aten.cat.default, (list(parts), 0), f"last{i}")
        for i, parts in enumerate(zip(*last, strict=True))
    ]
    for user in list(node.users):
        index = user.args[1]
        assert isinstance(index, int)
        G.replace(user, [y, *finals][index])
    node.graph.erase_node(node)


def _onnx_weights(
    module: fx.GraphModule,
    node: fx.Node,
    kind: str,
    weights: Sequence[Sequence[fx.Node]],
    part: str,
) -> list[fx.Node]:
    """Store w, r, b of one layer: directions stacked, gates in ONNX's order, biases joined."""
    order = list(layers.GATES[kind])

    def reordered(t: torch.Tensor) -> torch.Tensor:
        gates: torch.Tensor = t.unflatten(0, (len(order), -1))[order]
        return gates.flatten(0, 1)

    def stacked(*stored: torch.Tensor) -> list[torch.Tensor]:
        values = map(reordered, stored)
        tensors = [[next(values) for _ in one] for one in weights]
        w, r = (torch.stack([one[i] for one in tensors]) for i in (0, 1))
        zeros = [w.new_zeros(w.shape[1])] * 2
        return [w, r, torch.stack([torch.cat(one[2:] or zeros) for one in tensors])]

    w, r, b = G.computed(stacked, *(G.tensor(module, n) for one in weights for n in one))
    name = G.name_of(node) + (f".{part}" if part else "")
    return add_parameters(module, name, weight=w, recurrent=r, bias=b)


def _state(node: fx.Node, state: fx.Node, begin: int, count: int, part: str) -> fx.Node | None:
    if state.target is aten.zeros.default:
        return None
    if G.same_sizes(G.shape(state)[:1], [count]):
        return state
    return insert_before(node, aten.slice.Tensor, (state, 0, begin, begin + count), part)


def _one_row(node: fx.Node, y: fx.Node, directions: int, part: str) -> fx.Node:
    """[time, directions, batch, hidden] -> [time, batch, directions * hidden]."""
    name = f"{part}.y".lstrip(".")
    if directions == 1:
        return insert_before(node, aten.squeeze.dim, (y, 1), name)
    swapped: Any = insert_before(node, aten.transpose.int, (y, 1, 2), f"{name}.transpose")
    time, batch, _, hidden = G.shape(swapped)
    if isinstance(time, int) or isinstance(batch, int):
        sizes = [s if isinstance(s, int) else -1 for s in (time, batch)]
        return insert_before(
            node, aten.reshape.default, (swapped, [*sizes, directions * hidden]), name
        )
    return insert_before(node, aten.flatten.using_ints, (swapped, 2), name)


recurrent = pattern_pass("recurrent", _match, _rewrite)
