"""Streams: the channels that must have the same factor, and the constants that absorb it.

Every channel of every float tensor of a graph has a number; channels with the same number form a
stream. Operators that work channel by channel and commute with a positive factor (ReLU, pools,
sums, concats, operators that only move elements) pass the numbers of their inputs to their result;
a layer with weights absorbs the factors of its input and starts new streams (`layer_streams`).
Stream 0 is pinned to the factor 1, since one of its readers or writers cannot absorb a factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from qtool.algorithms.cross_layer_equalization import layer_streams
from qtool.algorithms.cross_layer_equalization.stream_walk import (
    Bound,
    Channels,
    Streams,
    StreamWalk,
)
from qtool.core import graph as G
from qtool.core.ops import data_inputs, row_of

aten = torch.ops.aten


def find_streams(module: fx.GraphModule) -> Streams:
    """Return the streams of a float graph, in canonical form or in that of a target."""
    walk = StreamWalk(module)
    for node in module.graph.nodes:
        if node.op == "call_function" and G.is_float(node):
            RULES.get(_kind(node), StreamWalk.stop)(walk, node)
        elif node.op != "get_attr":
            walk.stop(node)
    roots = torch.tensor([walk.root(i) for i in range(len(walk.parent))])
    used, numbers = roots.unique(return_inverse=True)
    tensors = {G.name_of(n): Channels(c.axis, numbers[c.streams]) for n, c in walk.channels.items()}
    return Streams(tensors, tuple(walk.slots), tuple(walk.bounds), len(used))


def _kind(node: fx.Node) -> str:
    row = row_of(node)
    return row.key if row is not None else str(node.target)


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
    row, source = row_of(node), node.args[0]
    assert row is not None
    assert isinstance(source, fx.Node)
    low, high = row.bounds(node)
    if low != 0 or (high is not None and high <= 0):
        walk.stop(node)
        return
    _keep(walk, node)
    if high is not None:
        walk.bounds.append(Bound(G.name_of(source), float(high)))


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
        result = node.target(*args, **kwargs)  # type: ignore[operator]  # an OpOverload
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


RULES = {
    "conv": layer_streams.conv,
    "conv_transpose": layer_streams.conv_transpose,
    "linear": layer_streams.linear,
    "relu": _keep,
    "leaky_relu": _keep,
    "prelu": _keep,
    "clip": _clip,
    "rescale": _keep,
    "max_pool": _pooled,
    "average_pool": _pooled,
    "global_average_pool": _pooled,
    "add": _add,
    "mul": _mul,
    "concat": _concat,
    "pad": _move,
    "pass": _move,
    str(aten.batch_norm.default): layer_streams.batch_norm,
    str(aten.group_norm.default): layer_streams.group_norm,
    str(aten.mean.dim): _mean,
    str(aten.upsample_nearest1d.vec): _pooled,
    str(aten.upsample_nearest3d.vec): _pooled,
    str(aten.upsample_linear1d.vec): _pooled,
    str(aten.upsample_bilinear2d.vec): _pooled,
    str(aten.upsample_trilinear3d.vec): _pooled,
}
"""Key of an operator, or its ATen name -> its rule; other operators pin their streams."""
