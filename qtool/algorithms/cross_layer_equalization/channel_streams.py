"""Streams: the channels that must have the same factor, and the constants that absorb it.

Every channel of every float tensor of a graph has a number; channels with the same number form a
stream. Operators that work channel by channel and commute with a positive factor (ReLU, pools,
sums, concats, all that only move elements) pass the numbers of their inputs to their result; a
layer with weights absorbs the factors of its input and starts new streams. Stream 0 is pinned to
the factor 1, since one of its readers or writers cannot absorb a factor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops import data_inputs, row_of

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Channels:
    """The streams of one tensor: their numbers, int64 [channels], along its dimension `axis`."""

    axis: int
    streams: torch.Tensor


@dataclass(frozen=True, eq=False)
class Slot:
    """A constant that takes the factors of a tensor's channels.

    constant, tensor: names of nodes. channel: int64, broadcasts over the constant: which channel's
    factor each element takes. power: 1 where it is multiplied by it (the tensor is read), -1 where
    it is divided (the tensor is written).
    """

    constant: str
    tensor: str
    channel: torch.Tensor
    power: int


@dataclass(frozen=True)
class Bound:
    """A clamp from 0 to `high` of the tensor `source`: channels may pass it that stay below."""

    source: str
    high: float


@dataclass(frozen=True)
class Streams:
    """tensors: by name. count: numbers run from 0, the pinned one, to `count` - 1."""

    tensors: Mapping[str, Channels]
    slots: tuple[Slot, ...]
    bounds: tuple[Bound, ...]
    count: int


def find_streams(module: fx.GraphModule) -> Streams:
    """The streams of a float graph in canonical form, or in that of a target."""
    walk = _Walk(module)
    for node in module.graph.nodes:
        if node.op == "call_function" and G.is_float(node):
            _VISITS.get(_kind(node), _stop)(walk, node)
        elif node.op != "get_attr":
            _stop(walk, node)
    roots = torch.tensor([walk.root(i) for i in range(len(walk.parent))])
    used, numbers = roots.unique(return_inverse=True)
    tensors = {G.name_of(n): Channels(c.axis, numbers[c.streams]) for n, c in walk.channels.items()}
    return Streams(tensors, tuple(walk.slots), tuple(walk.bounds), len(used))


@dataclass
class _Walk:
    """State of the analysis; streams that must be equal are joined (union-find)."""

    module: fx.GraphModule
    channels: dict[fx.Node, Channels] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    parent: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        graph = self.module.graph
        self.reads = Counter(
            str(n.target) for n in graph.nodes if n.op == "get_attr" for _ in n.users
        )

    def root(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def join(self, a: torch.Tensor, b: torch.Tensor) -> None:
        for i, j in {tuple(p) for p in torch.stack([a, b], 1).tolist()}:
            low, high = sorted((self.root(i), self.root(j)))
            self.parent[high] = low

    def of(self, value: object, axis: int | None = None) -> Channels | None:
        """The streams of an argument, if it has any; along this dimension."""
        found = self.channels.get(value) if isinstance(value, fx.Node) else None
        return found if found is None or axis in (None, found.axis) else None

    def pin(self, node: object) -> None:
        channels = self.of(node)
        if channels is not None:
            self.join(channels.streams, torch.zeros_like(channels.streams))

    def is_pinned(self, channels: Channels) -> bool:
        return all(self.root(i) == 0 for i in channels.streams.unique().tolist())

    def fresh(self, count: int) -> torch.Tensor:
        start = len(self.parent)
        self.parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def begin(self, node: fx.Node, axis: int) -> Channels:
        """New streams for the result of a node."""
        found = Channels(axis, self.fresh(int(G.shape(node)[axis])))
        self.channels[node] = found
        return found

    def own(self, *constants: object) -> bool:
        """Return whether these are stored constants with a single reader."""
        return all(
            isinstance(c, fx.Node) and c.op == "get_attr" and self.reads[str(c.target)] == 1
            for c in constants
            if c is not None
        )

    def slot(self, constant: object, tensor: object, channel: torch.Tensor, power: int) -> None:
        if isinstance(constant, fx.Node) and isinstance(tensor, fx.Node):
            self.slots.append(Slot(G.name_of(constant), G.name_of(tensor), channel, power))


def _kind(node: fx.Node) -> str:
    row = row_of(node)
    return row.key if row is not None else str(node.target)


def _stop(walk: _Walk, node: fx.Node) -> None:
    """Pin inputs and result."""
    for source in node.all_input_nodes:
        walk.pin(source)
    value = G.value(node)
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim():
        axis = min(1, value.dim() - 1)
        size = value.shape[axis]
        if isinstance(size, int):
            walk.channels[node] = Channels(axis, torch.zeros(size, dtype=torch.int64))


def _keep(walk: _Walk, node: fx.Node) -> None:
    """Channel by channel, and a positive factor of the input is one of the output."""
    channels = walk.of(node.args[0])
    if channels is None:
        _stop(walk, node)
    else:
        walk.channels[node] = channels


def _pooled(walk: _Walk, node: fx.Node) -> None:
    """As `_same`, where the channels lie along dimension 1."""
    (_stop if walk.of(node.args[0], 1) is None else _keep)(walk, node)


def _clip(walk: _Walk, node: fx.Node) -> None:
    row, source = row_of(node), node.args[0]
    assert row is not None
    assert isinstance(source, fx.Node)
    low, high = row.bounds(node)
    if low != 0 or (high is not None and high <= 0):
        _stop(walk, node)
        return
    _keep(walk, node)
    if high is not None:
        walk.bounds.append(Bound(G.name_of(source), float(high)))


def _add(walk: _Walk, node: fx.Node) -> None:
    one, other = walk.of(node.args[0]), walk.of(node.args[1])
    alike = all(_as_large(a, node) for a in node.args[:2])
    if one is None or other is None or one.axis != other.axis or not alike:
        _stop(walk, node)
    else:
        walk.join(one.streams, other.streams)
        walk.channels[node] = one


def _mul(walk: _Walk, node: fx.Node) -> None:
    """By a number, or by a gate: a tensor in which nothing is scaled."""
    for x, gate in (node.args[:2], node.args[1::-1]):
        channels, pinned = walk.of(x), walk.of(gate)
        number = isinstance(gate, int | float) and gate > 0
        if channels is None or not _as_large(x, node):
            continue
        if number or (pinned is not None and walk.is_pinned(pinned)):
            walk.channels[node] = channels
            return
    _stop(walk, node)


def _as_large(value: object, node: fx.Node) -> bool:
    return isinstance(value, fx.Node) and G.same_sizes(G.shape(value), G.shape(node))


def _concat(walk: _Walk, node: fx.Node) -> None:
    axis = int(G.argument(node, 1, "dim", 0)) % G.rank(node)
    given = [walk.of(n) for n in data_inputs(node)]
    parts = [p for p in given if p is not None]
    if len(parts) < len(given) or len({p.axis for p in parts}) != 1:
        _stop(walk, node)
    elif axis == parts[0].axis:
        walk.channels[node] = Channels(axis, torch.cat([p.streams for p in parts]))
    else:
        for p in parts[1:]:
            walk.join(parts[0].streams, p.streams)
        walk.channels[node] = parts[0]


def _move(walk: _Walk, node: fx.Node) -> None:
    """Elements at other places: found by moving the numbers themselves, on the example's sizes.
    What is padded with zeros belongs to any stream."""
    source = node.args[0]
    channels, filled = walk.of(source), _kind(node) == "pad" and G.argument(node, 2, "value", 0)
    found = None
    if channels is not None and isinstance(source, fx.Node) and not filled:
        sizes = [G.hint(s) for s in G.shape(source)]
        view = [-1 if d == channels.axis else 1 for d in range(len(sizes))]
        labels = (channels.streams + 1).double().reshape(view).expand(sizes)
        moved = _call(walk.module, node, {source: labels})
        found = None if moved is None else _axis_of(moved)
    if found is None:
        _stop(walk, node)
        return
    axis, streams = found
    streams[streams < 0] = walk.fresh(int((streams < 0).sum()))
    walk.channels[node] = Channels(axis, streams)


def _call(
    module: fx.GraphModule, node: fx.Node, given: Mapping[fx.Node, torch.Tensor]
) -> torch.Tensor | None:
    """A node on other values; sizes are those of the example. None where it does not take them, or
    reads others that are computed."""
    others = [n for n in node.all_input_nodes if n not in given and n.op != "get_attr"]
    if any(isinstance(G.value(n), torch.Tensor) for n in others):
        return None

    def value(n: fx.Node) -> Any:
        if n in given:
            return given[n]
        return G.tensor(module, n) if n.op == "get_attr" else G.hint(G.value(n))

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
    try:
        found = node.target(*args, **kwargs)  # type: ignore[operator]  # an OpOverload
    except (RuntimeError, TypeError, ValueError):
        return None
    return found if isinstance(found, torch.Tensor) else None


def _axis_of(labels: torch.Tensor) -> tuple[int, torch.Tensor] | None:
    """The dimension along which labels differ, and there the streams; -1 where all are zeros."""
    order = sorted(range(labels.dim()), key=lambda d: (d != 1, labels.shape[d] == 1, d))
    for axis in order:
        rows = labels.movedim(axis, 0).reshape(labels.shape[axis], -1)
        high = rows.amax(1)
        if bool(((rows == high[:, None]) | (rows == 0)).all()):
            return axis, high.long() - 1
    return None


def _conv(walk: _Walk, node: fx.Node) -> None:
    source, weight, bias = node.args[:3]
    if walk.of(source, 1) is None or not walk.own(weight, bias):
        _stop(walk, node)
        return
    groups, ones = int(node.args[6]), [1] * (G.rank(node) - 2)  # type: ignore[arg-type]  # an int
    outputs, width = (int(s) for s in G.shape(weight)[:2])  # type: ignore[arg-type]  # a node
    written = torch.arange(outputs)
    read = (written // (outputs // groups))[:, None] * width + torch.arange(width)
    read = read[:1] if groups == 1 else read
    walk.begin(node, 1)
    walk.slot(weight, source, read.reshape(*read.shape, *ones), 1)
    walk.slot(weight, node, written.reshape(-1, 1, *ones), -1)
    walk.slot(bias, node, written, -1)


def _transposed(walk: _Walk, node: fx.Node) -> None:
    source, weight, bias = node.args[:3]
    if walk.of(source, 1) is None or node.args[6] != 1 or not walk.own(weight, bias):
        _stop(walk, node)
        return
    inputs, outputs, *kernel = (int(s) for s in G.shape(weight))  # type: ignore[arg-type]  # a node
    ones = [1] * len(kernel)
    walk.begin(node, 1)
    walk.slot(weight, source, torch.arange(inputs).reshape(-1, 1, *ones), 1)
    walk.slot(weight, node, torch.arange(outputs).reshape(1, -1, *ones), -1)
    walk.slot(bias, node, torch.arange(outputs), -1)


def _linear(walk: _Walk, node: fx.Node) -> None:
    source, weight, bias = *node.args[:2], G.argument(node, 2, "bias")
    last = G.rank(node) - 1
    if walk.of(source, last) is None or not walk.own(weight, bias):
        _stop(walk, node)
        return
    outputs, width = (torch.arange(int(s)) for s in G.shape(weight))  # type: ignore[arg-type]
    walk.begin(node, last)
    walk.slot(weight, source, width[None], 1)
    walk.slot(weight, node, outputs[:, None], -1)
    walk.slot(bias, node, outputs, -1)


def _batch_norm(walk: _Walk, node: fx.Node) -> None:
    """gamma (x - mean) / deviation + beta; the deviation stays as it is."""
    source, gamma, beta, mean = node.args[:4]
    constants = [c for c in (gamma, beta, mean) if c is not None]
    if walk.of(source, 1) is None or len(constants) < 3 or node.args[5] or not walk.own(*constants):
        _stop(walk, node)
        return
    every = torch.arange(len(walk.begin(node, 1).streams))
    for constant, tensor, power in (
        (gamma, source, 1),
        (mean, source, -1),
        (gamma, node, -1),
        (beta, node, -1),
    ):
        walk.slot(constant, tensor, every, power)


def _group_norm(walk: _Walk, node: fx.Node) -> None:
    """It knows no factor of its input; its result is written by its constants."""
    gamma, beta = G.argument(node, 2, "weight"), G.argument(node, 3, "bias")
    _stop(walk, node)
    if gamma is not None and beta is not None and walk.own(gamma, beta):
        every = torch.arange(len(walk.begin(node, 1).streams))
        walk.slot(gamma, node, every, -1)
        walk.slot(beta, node, every, -1)


def _mean(walk: _Walk, node: fx.Node) -> None:
    source, dims = node.args[0], G.argument(node, 1, "dim")
    channels = walk.of(source)
    rank = G.rank(source) if isinstance(source, fx.Node) else 0
    gone = {int(d) % rank for d in dims or range(rank)}
    if channels is None or channels.axis in gone:
        _stop(walk, node)
        return
    before = 0 if G.rank(node) == rank else sum(d < channels.axis for d in gone)
    walk.channels[node] = Channels(channels.axis - before, channels.streams)


_VISITS = {
    "conv": _conv,
    "conv_transpose": _transposed,
    "linear": _linear,
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
    str(aten.batch_norm.default): _batch_norm,
    str(aten.group_norm.default): _group_norm,
    str(aten.mean.dim): _mean,
    str(aten.upsample_nearest1d.vec): _pooled,
    str(aten.upsample_nearest3d.vec): _pooled,
    str(aten.upsample_linear1d.vec): _pooled,
    str(aten.upsample_bilinear2d.vec): _pooled,
    str(aten.upsample_trilinear3d.vec): _pooled,
}
"""Key of an operator, or its ATen name -> what it does to streams; any other stops them."""
