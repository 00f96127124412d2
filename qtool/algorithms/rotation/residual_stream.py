"""The residual stream of a decoder: what writes to it, and what reads it.

Embeddings and linear layers write to it, sums join them, RMSNorms and linear layers read it. An
RMSNorm divides by a length, which a rotation keeps. The stream may therefore be rotated by any
orthogonal matrix if all of these are rotated along (Ashkboos et al. 2024, SliceGPT).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops import row_of

aten = torch.ops.aten

_MOVES: dict[Any, int | None] = {  # operator -> argument with the dimension that it works along
    aten.reshape.default: None,
    aten.unsqueeze.default: None,
    aten.clone.default: None,
    aten.slice.Tensor: 1,
    aten.select.int: 1,
    aten.index_select.default: 1,
}


class NoStreamError(ValueError):
    """Why there is no residual stream that may be rotated, as part of a sentence."""


@dataclass(frozen=True, eq=False)
class ResidualStream:
    """A residual stream.

    Attributes:
        width: number of channels.
        tables: lookups that write to it.
        writers: linear layers that write to it.
        readers: linear layer that reads it -> the RMSNorm in between, if any.
    """

    width: int
    tables: list[fx.Node] = field(default_factory=list)
    writers: list[fx.Node] = field(default_factory=list)
    readers: dict[fx.Node, fx.Node | None] = field(default_factory=dict)


def find_residual_stream(graph: fx.Graph) -> ResidualStream:
    """Return the stream that starts at the first embedding of a graph.

    Raises:
        NoStreamError: there is none, or something reads or writes it that has no rotated form.
    """
    table = next((n for n in G.calls(graph) if _key(n) == "embedding"), None)
    if table is None:
        raise NoStreamError("there is no embedding that a residual stream starts at")
    stream, members = ResidualStream(int(G.shape(table)[-1])), set[fx.Node]()
    waiting = [table]
    while waiting:
        node = waiting.pop()
        if node in members:
            continue
        members.add(node)
        waiting += _sources(stream, node)
        for reader in node.users:
            waiting += _read(stream, node, reader)
    if not stream.writers or not stream.readers:
        raise NoStreamError("no linear layers read and write the same residual stream")
    return stream


def _sources(stream: ResidualStream, node: fx.Node) -> list[fx.Node]:
    """Return the operands of a member that are members, too; note what writes to the stream."""
    if _key(node) == "embedding":
        stream.tables.append(node)
        return []
    if _key(node) == "linear":
        stream.writers.append(node)
        return []
    if node.target is aten.add.Tensor and not node.kwargs:
        operands = [a for a in node.args if isinstance(a, fx.Node) and _has_width(stream, a)]
        if len(operands) == 2:
            return operands
    if node.target is aten.mul.Tensor and (source := _scaled(node)) is not None:
        return [source]
    if _keeps_channels(node):
        return list(node.all_input_nodes[:1])
    raise NoStreamError(
        f"'{G.name_of(node)}' writes to the residual stream and has no rotated form"
    )


def _read(stream: ResidualStream, node: fx.Node, reader: fx.Node) -> list[fx.Node]:
    """Return a reader if it is a member itself; note linear layers and norms."""
    if reader.target is aten.sym_size.int:
        return []
    if reader.target is aten.rms_norm.default and reader.args[0] is node:
        for layer in _layers_behind(reader):
            stream.readers[layer] = reader
        return []
    if _key(reader) == "linear" and reader.args[0] is node:
        stream.readers[reader] = None
        return []
    if reader.target in (aten.add.Tensor, aten.mul.Tensor) or _keeps_channels(reader):
        return [reader]
    raise NoStreamError(f"'{G.name_of(reader)}' reads the residual stream and has no rotated form")


def _layers_behind(norm: fx.Node) -> list[fx.Node]:
    """Return the linear layers that read a norm's result; nothing else may."""
    layers, waiting = [], [norm]
    while waiting:
        node = waiting.pop()
        for reader in node.users:
            if _key(reader) == "linear" and reader.args[0] is node:
                layers.append(reader)
            elif _keeps_channels(reader):
                waiting.append(reader)
            elif reader.target is not aten.sym_size.int:
                raise NoStreamError(
                    f"'{G.name_of(reader)}' reads the result of '{G.name_of(norm)}' and is no "
                    "linear layer"
                )
    return layers


def _keeps_channels(node: fx.Node) -> bool:
    """Return whether an operator moves rows of channels and leaves the order in each row."""
    if node.target not in _MOVES or not isinstance(node.args[0], fx.Node):
        return False
    at, source = _MOVES[node.target], node.args[0]
    sizes = G.shape(source)[-1], G.shape(node)[-1]
    if not all(isinstance(size, int) for size in sizes) or sizes[0] != sizes[1]:
        return False
    along = G.argument(node, at, "dim", 0) if at is not None else 0
    return bool(along not in (-1, G.rank(source) - 1))


def _scaled(node: fx.Node) -> fx.Node | None:
    """Return the tensor that a product with one number scales."""
    x, factor = node.args[:2]
    if not isinstance(x, fx.Node):
        return None
    is_number = not isinstance(factor, fx.Node) or (
        factor.op == "get_attr" and G.is_tensor(factor) and G.value(factor).numel() == 1
    )
    return x if is_number else None


def _has_width(stream: ResidualStream, node: fx.Node) -> bool:
    return G.is_tensor(node) and G.rank(node) > 1 and G.shape(node)[-1] == stream.width


def _key(node: fx.Node) -> str:
    row = row_of(node)
    return "" if row is None else row.key
