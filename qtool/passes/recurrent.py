"""A recurrent network becomes one operator per layer, with weights in the layout of ONNX.

ATen's lstm, gru and rnn contain all layers, with gates in another order. Initial states of zeros,
which every call without states has, are left out: they are the runtime's default.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.node import Target

from qtool.core import graph as G
from qtool.core.ops import recurrent as layers
from qtool.core.ops import row_of
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import Rule, Rules, add_parameters, insert_before

aten = torch.ops.aten
_KINDS: Mapping[Any, tuple[str, Any, tuple[str, ...]]] = {
    aten.lstm.input: ("lstm", layers.lstm, ()),
    aten.gru.input: ("gru", layers.gru, ()),
    aten.rnn_tanh.input: ("rnn", layers.rnn, ("tanh",)),
    aten.rnn_relu.input: ("rnn", layers.rnn, ("relu",)),
}
_PER_ROW = (aten.linear.default, aten.matmul.default)
_WITH_VECTOR = (aten.add.Tensor, aten.mul.Tensor)


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


# A recurrent cell (LSTMCell, GRUCell, RNNCell) becomes two linear layers and elementwise gates.


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
    call = partial(insert_before, node)
    gated = call(aten.mul.Tensor, (reset, b[2]), "gated")
    new = _sum(node, aten.tanh.default, a[2], gated, "new")
    kept = call(aten.mul.Tensor, (call(aten.sub.Tensor, (h, new), "less"), update), "kept")
    return call(aten.add.Tensor, (kept, new))


def _lstm(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    if any(u.target is not operator.getitem for u in users):
        return None
    h, c = G.sources(node, 1)
    size, call = int(G.shape(h)[-1]), partial(insert_before, node)
    gates = call(aten.add.Tensor, _layers(node, h), "gates")
    i, f, g, o = (_gate(node, gates, k, size, part) for k, part in enumerate("ifgo"))
    sigmoid, tanh, product = aten.sigmoid.default, aten.tanh.default, aten.mul.Tensor
    kept = call(product, (call(sigmoid, (f,), "forget"), c), "kept")
    new = call(product, (call(sigmoid, (i,), "take"), call(tanh, (g,), "new")), "added")
    cell = call(aten.add.Tensor, (kept, new), "cell")
    hidden = call(product, (call(sigmoid, (o,), "show"), call(tanh, (cell,), "cell.tanh")))
    for user in users:
        G.replace(user, hidden if user.args[1] == 0 else cell)
    return hidden


def _plain(activation: Target) -> Rule:
    def rule(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        return _sum(node, activation, *_layers(node, node.args[1]), "")

    return rule


def _sum(node: fx.Node, activation: Target, a: fx.Node, b: fx.Node, part: str) -> fx.Node:
    both = insert_before(node, aten.add.Tensor, (a, b), f"{part}.sum" if part else "sum")
    return insert_before(node, activation, (both,), part)


CELL_RULES: Rules = {
    aten.gru_cell.default: _gru,
    aten.lstm_cell.default: _lstm,
    aten.rnn_tanh_cell.default: _plain(aten.tanh.default),
    aten.rnn_relu_cell.default: _plain(aten.relu.default),
}


# A layer that is applied to each step of a sequence by itself, and stacked, is applied once.
#
# Keras' `TimeDistributed` becomes that in files: a slice, a product, a sum and an axis for each
# step, and a concat of them all. As one layer over the sequence it is one matrix product, one row
# of the plan and one node of the file.


class _Step(NamedTuple):
    """What is computed of a step: the sequence, the number of the step, and the calls in order."""

    source: fx.Node
    number: int
    calls: tuple[fx.Node, ...]


def _steps(node: fx.Node) -> list[_Step] | None:
    """Return the equal steps that a concat stacks, if they are all of one tensor."""
    if node.target is not aten.cat.default:
        return None
    axis = int(G.argument(node, 1, "dim", 0)) % G.rank(node)
    steps = [_step(part, axis) for part in G.sources(node)]
    known = [step for step in steps if step is not None]
    if len(known) != len(steps) or len(steps) < 2 or axis == G.rank(node) - 1:
        return None
    source, _, calls = known[0]
    if [step.number for step in known] != [*range(len(steps))] or not calls:
        return None
    same = all(step.source is source and _equal(step.calls, calls) for step in known)
    return known if same and G.shape(source)[axis] == len(steps) else None


def _step(part: fx.Node, axis: int) -> _Step | None:
    """Return what a part of a concat along `axis` is, if it is computed of one step."""
    if part.target is not aten.unsqueeze.default or G.integer(part, 1) % G.rank(part) != axis:
        return None
    calls, node = list[fx.Node](), G.source(part)
    while _applies_to_rows(node):
        calls.insert(0, node)
        node = G.source(node)
    sliced = _slice(node, axis)
    return None if sliced is None else _Step(*sliced, tuple(calls))


def _slice(node: fx.Node, axis: int) -> tuple[fx.Node, int] | None:
    """Return (sequence, number) if a node is one step of a sequence, without its axis."""
    cut = node
    if node.target in (aten.squeeze.dim, aten.squeeze.dims):
        cut = G.source(node)
        one = cut.target is aten.slice.Tensor and G.rank(node) == G.rank(cut) - 1
        if not one or node.args[1] not in (cut.args[1], [cut.args[1]]):
            return None
    elif node.target is not aten.select.int:
        return None
    source, at, number = G.source(cut), G.integer(cut, 1), cut.args[2]
    if isinstance(number, int) and number >= 0 and at % G.rank(source) == axis:
        return source, number
    return None


def _applies_to_rows(node: fx.Node) -> bool:
    """Return whether a call treats each row of its first input alike, however many there are."""
    if node.op != "call_function" or node.kwargs or len(node.users) != 1:
        return False
    others = [value for value in node.args[1:] if isinstance(value, fx.Node)]
    if not isinstance(node.args[0], fx.Node) or any(o.op != "get_attr" for o in others):
        return False
    rank, row = max(map(G.rank, others), default=0), row_of(node)
    if node.target in _PER_ROW:
        return rank <= 2
    if node.target in _WITH_VECTOR:
        return rank <= 1
    return row is not None and row.flat and not others


def _equal(calls: tuple[fx.Node, ...], others: tuple[fx.Node, ...]) -> bool:
    return len(calls) == len(others) and all(
        a.target is b.target and [*_operands(a)] == [*_operands(b)]
        for a, b in zip(calls, others, strict=True)
    )


def _operands(node: fx.Node) -> Iterator[Any]:
    """Yield the operands but the first, a stored tensor by its name in the module."""
    for value in node.args[1:]:
        yield str(value.target) if isinstance(value, fx.Node) else value


def _join(module: fx.GraphModule, node: fx.Node, steps: list[_Step]) -> None:
    value = steps[0].source
    for call in steps[0].calls:
        value = G.add_call(node, call.target, (value, *call.args[1:]), G.name_of(call), node)
    G.replace(node, value)


unrolled_steps = pattern_pass("unrolled_steps", _steps, _join)
