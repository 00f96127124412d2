"""State of the analysis of streams: their numbers per tensor, joined by union-find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from qtool.core import graph as G


@dataclass(frozen=True, eq=False)
class Channels:
    """The streams of one tensor.

    Attributes:
        axis: dimension of the channels.
        streams: number of each channel's stream, int64 [channels].
    """

    axis: int
    streams: torch.Tensor


@dataclass(frozen=True, eq=False)
class Slot:
    """A constant that absorbs the factors of a tensor's channels.

    Attributes:
        constant, tensor: names of nodes.
        channel: whose factor each element takes, int64, broadcasts over the constant.
        power: 1: multiplied by the factor (the layer reads the tensor); -1: divided by it (the
            layer writes the tensor).
    """

    constant: str
    tensor: str
    channel: torch.Tensor
    power: int


@dataclass(frozen=True)
class Bound:
    """A clamp of the tensor `source` from 0 to `high`; only channels below `high` can be scaled."""

    source: str
    high: float


@dataclass(frozen=True)
class Streams:
    """The streams of a graph.

    Attributes:
        tensors: channels of tensors by name.
        slots: constants that absorb factors.
        bounds: clamps with an upper bound.
        count: number of streams; stream 0 is pinned.
    """

    tensors: Mapping[str, Channels]
    slots: tuple[Slot, ...]
    bounds: tuple[Bound, ...]
    count: int


@dataclass
class StreamWalk:
    """State of the analysis; streams that must be equal are joined (union-find)."""

    module: fx.GraphModule
    channels: dict[fx.Node, Channels] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    parent: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        self.reads = G.attribute_reads(self.module.graph)

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
        """Return the channels of an argument; None if it has none, or along another axis."""
        channels = self.channels.get(value) if isinstance(value, fx.Node) else None
        return channels if channels is None or axis in (None, channels.axis) else None

    def pin(self, node: object) -> None:
        channels = self.of(node)
        if channels is not None:
            self.join(channels.streams, torch.zeros_like(channels.streams))

    def is_pinned(self, channels: Channels) -> bool:
        return all(self.root(i) == 0 for i in channels.streams.unique().tolist())

    def fresh(self, count: int) -> torch.Tensor:
        """Return the numbers of new streams."""
        start = len(self.parent)
        self.parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def begin(self, node: fx.Node, axis: int) -> Channels:
        """Start new streams for the result of a node."""
        channels = Channels(axis, self.fresh(int(G.shape(node)[axis])))
        self.channels[node] = channels
        return channels

    def owns(self, *constants: object) -> bool:
        """Return whether these are stored constants with a single reader."""
        return all(
            isinstance(c, fx.Node) and c.op == "get_attr" and self.reads[str(c.target)] == 1
            for c in constants
            if c is not None
        )

    def add_slot(self, constant: object, tensor: object, channel: torch.Tensor, power: int) -> None:
        if isinstance(constant, fx.Node) and isinstance(tensor, fx.Node):
            self.slots.append(Slot(G.name_of(constant), G.name_of(tensor), channel, power))

    def stop(self, node: fx.Node) -> None:
        """Pin the inputs and the result of a node."""
        for source in node.all_input_nodes:
            self.pin(source)
        value = G.value(node)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim():
            axis = min(1, value.dim() - 1)
            size = value.shape[axis]
            if isinstance(size, int):
                self.channels[node] = Channels(axis, torch.zeros(size, dtype=torch.int64))
