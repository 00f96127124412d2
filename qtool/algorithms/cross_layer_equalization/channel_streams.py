"""Streams: the channels that must have the same factor, and the constants that absorb it.

Every channel of every float tensor of a graph has a number; channels with the same number form a
stream. Operators that work channel by channel and commute with a positive factor (ReLU, pools,
sums, concats, operators that only move elements) pass the numbers of their inputs to their result;
a layer with weights absorbs the factors of its input and starts new streams.
Stream 0 is pinned to the factor 1, since one of its readers or writers cannot absorb a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from qtool.algorithms.cross_layer_equalization.stream_walk import (
    Bound,
    Channels,
    Streams,
    StreamWalk,
)
from qtool.core import graph as G
from qtool.core.ops import data_inputs, row_of

aten = torch.ops.aten
Rule = Callable[[StreamWalk, fx.Node], None]


def find_streams(module: fx.GraphModule) -> Streams:
    """Return the streams of a float graph, in canonical form or in that of a target."""
    walk = StreamWalk(module)
    for node in module.graph.nodes:
        if node.op == "call_function" and G.is_float(node):
            _rule(node)(walk, node)
        elif node.op != "get_attr":
            walk.stop(node)
    roots = torch.tensor([walk.root(i) for i in range(len(walk.parent))])
    used, numbers = roots.unique(return_inverse=True)
    tensors = {G.name_of(n): Channels(c.axis, numbers[c.streams]) for n, c in walk.channels.items()}
    return Streams(tensors, tuple(walk.slots), tuple(walk.bounds), len(used))


def _kind(node: fx.Node) -> str:
    row = row_of(node)
    return row.key if row is not None else str(node.target)


def _rule(node: fx.Node) -> Rule:
    row, rule = row_of(node), RULES.get(_kind(node))
    if rule is not None:
        return rule
    if row is None or not row.homogeneous:
        return StreamWalk.stop
    return _pooled if row.spatial else _keep


def _keep(walk: StreamWalk, node: fx.Node) -> None:
    """Pass streams on: the operator works channel by channel and commutes with a factor."""
    channels = walk.of(node.args[0])
    if channels is None:
        walk.stop(node)
    else:
        walk.channels[node] = channels


def _pooled(walk: StreamWalk, node: fx.Node) -> None:
    """Pass streams on if channels are along dimension 1."""
    (StreamWalk.stop if walk.of(node.args[0], 1) is None else _keep)(walk, node)


def _clip(walk: StreamWalk, node: fx.Node) -> None:
    row = row_of(node)
    assert row is not None
    low, high = row.bounds(node)
    if low != 0 or (high is not None and high <= 0):
        walk.stop(node)
        return
    _keep(walk, node)
    if high is not None and G.source(node) in walk.channels:  # others are not scaled
        walk.bounds.append(Bound(G.name_of(G.source(node)), float(high)))


def _add(walk: StreamWalk, node: fx.Node) -> None:
    one, other = walk.of(node.args[0]), walk.of(node.args[1])
    equal_sizes = all(_as_large(a, node) for a in node.args[:2])
    if one is None or other is None or one.axis != other.axis or not equal_sizes:
        walk.stop(node)
    else:
        walk.join(one.streams, other.streams)
        walk.channels[node] = one


def _mul(walk: StreamWalk, node: fx.Node) -> None:
    """Pass streams on at a product with a positive number or a gate: a pinned tensor."""
    for x, gate in (node.args[:2], node.args[1::-1]):
        channels, pinned = walk.of(x), walk.of(gate)
        number = isinstance(gate, int | float) and gate > 0
        if channels is None or not _as_large(x, node):
            continue
        if number or (pinned is not None and walk.is_pinned(pinned)):
            walk.channels[node] = channels
            return
    walk.stop(node)


def _as_large(value: object, node: fx.Node) -> bool:
    return isinstance(value, fx.Node) and G.same_sizes(G.shape(value), G.shape(node))


def _concat(walk: StreamWalk, node: fx.Node) -> None:
    axis = int(G.argument(node, 1, "dim", 0)) % G.rank(node)
    inputs = [walk.of(n) for n in data_inputs(node)]
    parts = [p for p in inputs if p is not None]
    if len(parts) < len(inputs) or len({p.axis for p in parts}) != 1:
        walk.stop(node)
    elif axis == parts[0].axis:
        walk.channels[node] = Channels(axis, torch.cat([p.streams for p in parts]))
    else:
        for p in parts[1:]:
            walk.join(parts[0].streams, p.streams)
        walk.channels[node] = parts[0]


def _move(walk: StreamWalk, node: fx.Node) -> None:
    """Pass on the streams of moved elements, by running the operator on the stream numbers.

    Sizes are those of the example. Zeros of a padding start streams of their own.
    """
    source = node.args[0]
    channels, filled = walk.of(source), _kind(node) == "pad" and G.argument(node, 2, "value", 0)
    located = None
    if channels is not None and isinstance(source, fx.Node) and not filled:
        sizes = [G.hint(s) for s in G.shape(source)]
        view = [-1 if d == channels.axis else 1 for d in range(len(sizes))]
        labels = (channels.streams + 1).double().reshape(view).expand(sizes)
        moved = _call(walk.module, node, {source: labels})
        located = None if moved is None else _axis_of(moved)
    if located is None:
        walk.stop(node)
        return
    axis, streams = located
    streams[streams < 0] = walk.fresh(int((streams < 0).sum()))
    walk.channels[node] = Channels(axis, streams)


def _call(
    module: fx.GraphModule, node: fx.Node, inputs: Mapping[fx.Node, torch.Tensor]
) -> torch.Tensor | None:
    """Run a node on other inputs; sizes are those of the example.

    None if the operator refuses them, or reads other computed tensors.
    """
    others = [n for n in node.all_input_nodes if n not in inputs and n.op != "get_attr"]
    if any(isinstance(G.value(n), torch.Tensor) for n in others):
        return None

    def value(n: fx.Node) -> Any:
        if n in inputs:
            return inputs[n]
        return G.tensor(module, n) if n.op == "get_attr" else G.hint(G.value(n))

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
    try:
        result = G.run_operator(node, args, kwargs)
    except (RuntimeError, TypeError, ValueError):
        return None
    return result if isinstance(result, torch.Tensor) else None


def _axis_of(labels: torch.Tensor) -> tuple[int, torch.Tensor] | None:
    """Return the dimension along which labels differ, and the streams there; -1: only zeros. None
    if there are no labels."""
    if not labels.numel():
        return None
    order = sorted(range(labels.dim()), key=lambda d: (d != 1, labels.shape[d] == 1, d))
    for axis in order:
        rows = labels.movedim(axis, 0).reshape(labels.shape[axis], -1)
        high = rows.amax(1)
        if bool(((rows == high[:, None]) | (rows == 0)).all()):
            return axis, high.long() - 1
    return None


def _mean(walk: StreamWalk, node: fx.Node) -> None:
    source, dims = node.args[0], G.argument(node, 1, "dim")
    channels = walk.of(source)
    rank = G.rank(source) if isinstance(source, fx.Node) else 0
    reduced = {int(d) % rank for d in dims or range(rank)}
    if channels is None or channels.axis in reduced:
        walk.stop(node)
        return
    before = 0 if G.rank(node) == rank else sum(d < channels.axis for d in reduced)
    walk.channels[node] = Channels(channels.axis - before, channels.streams)


# --- operators with constants: these absorb factors, and new streams start behind them ----------


def _conv(walk: StreamWalk, node: fx.Node) -> None:
    """Read streams along dimension 1 by the weight, and start streams that it writes."""
    source, weight, bias = node.args[0], G.source(node, 1), node.args[2]
    if walk.of(source, 1) is None or not walk.owns(weight, bias):
        walk.stop(node)
        return
    groups, ones = G.integer(node, 6), [1] * (G.rank(node) - 2)
    outputs, width = (int(s) for s in G.shape(weight)[:2])
    written = torch.arange(outputs)
    read = (written // (outputs // groups))[:, None] * width + torch.arange(width)
    read = read[:1] if groups == 1 else read
    walk.begin(node, 1)
    walk.add_slot(weight, source, read.reshape(*read.shape, *ones), 1)
    walk.add_slot(weight, node, written.reshape(-1, 1, *ones), -1)
    walk.add_slot(bias, node, written, -1)


def _conv_transpose(walk: StreamWalk, node: fx.Node) -> None:
    """Like `_conv`, without groups: the weight is [in, out, *kernel]."""
    source, weight, bias = node.args[0], G.source(node, 1), node.args[2]
    if walk.of(source, 1) is None or node.args[6] != 1 or not walk.owns(weight, bias):
        walk.stop(node)
        return
    inputs, outputs, *kernel = (int(s) for s in G.shape(weight))
    ones = [1] * len(kernel)
    walk.begin(node, 1)
    walk.add_slot(weight, source, torch.arange(inputs).reshape(-1, 1, *ones), 1)
    walk.add_slot(weight, node, torch.arange(outputs).reshape(1, -1, *ones), -1)
    walk.add_slot(bias, node, torch.arange(outputs), -1)


def _linear(walk: StreamWalk, node: fx.Node) -> None:
    """Read streams along the last dimension by the weight, and start streams that it writes."""
    source, weight, bias = node.args[0], G.source(node, 1), G.argument(node, 2, "bias")
    last = G.rank(node) - 1
    if walk.of(source, last) is None or not walk.owns(weight, bias):
        walk.stop(node)
        return
    outputs, width = (torch.arange(int(s)) for s in G.shape(weight))
    walk.begin(node, last)
    walk.add_slot(weight, source, width[None], 1)
    walk.add_slot(weight, node, outputs[:, None], -1)
    walk.add_slot(bias, node, outputs, -1)


def _batch_norm(walk: StreamWalk, node: fx.Node) -> None:
    """Scale gamma, mean and beta of gamma (x - mean) / deviation + beta, not the deviation."""
    source, gamma, beta, mean = node.args[:4]
    constants = [c for c in (gamma, beta, mean) if c is not None]
    if (
        walk.of(source, 1) is None
        or len(constants) < 3
        or node.args[5]
        or not walk.owns(*constants)
    ):
        walk.stop(node)
        return
    channels = torch.arange(len(walk.begin(node, 1).streams))
    for constant, tensor, power in (
        (gamma, source, 1),
        (mean, source, -1),
        (gamma, node, -1),
        (beta, node, -1),
    ):
        walk.add_slot(constant, tensor, channels, power)


def _group_norm(walk: StreamWalk, node: fx.Node) -> None:
    """Pin the input, and start streams that gamma and beta write."""
    gamma, beta = G.argument(node, 2, "weight"), G.argument(node, 3, "bias")
    walk.stop(node)
    if gamma is not None and beta is not None and walk.owns(gamma, beta):
        channels = torch.arange(len(walk.begin(node, 1).streams))
        walk.add_slot(gamma, node, channels, -1)
        walk.add_slot(beta, node, channels, -1)


RULES: Mapping[str, Rule] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "linear": _linear,
    "clip": _clip,
    "add": _add,
    "mul": _mul,
    "concat": _concat,
    "pad": _move,
    "pass": _move,
    str(aten.batch_norm.default): _batch_norm,
    str(aten.group_norm.default): _group_norm,
    str(aten.mean.dim): _mean,
    str(aten.upsample_nearest1d.vec): _pooled,
    str(aten.upsample_nearest3d.vec): _pooled,
    str(aten.upsample_linear1d.vec): _pooled,
    str(aten.upsample_bilinear2d.vec): _pooled,
    str(aten.upsample_trilinear3d.vec): _pooled,
}
"""Key of an operator, or its ATen name -> its rule. Other operators keep their streams if they are
homogeneous, and pin them if not."""
