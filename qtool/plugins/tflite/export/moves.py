"""Operators that move, repeat or pick elements: the same on codes and on floats."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.node import Target

from qtool.core import graph as G
from qtool.core.errors import ExportError
from qtool.core.graph import torch_ops
from qtool.core.quant_params import QuantParams
from qtool.plugins.tflite.export.layers import name
from qtool.plugins.tflite.export.values import (
    Order,
    Stored,
    Value,
    channels_last,
    identity,
    regroup,
)
from qtool.plugins.tflite.export.writer import FIXED_BATCH, Writer, moves_data

aten = torch.ops.aten

_LINEAR = (aten.linear.default, torch_ops.gemm)
_END = sys.maxsize
_INT32_END = 2**31 - 1


def reshape(writer: Writer, node: fx.Node, x: Value) -> Value:
    """Write a RESHAPE in the layout of the value where that joins and splits whole axes."""
    fake = G.value(node)
    sizes = tuple(map(writer.size, fake.shape))
    dynamic = tuple(map(writer.is_dynamic, fake.shape))
    flat = replace(x, sizes=sizes, dynamic=dynamic, order=identity(len(sizes)), columns=())
    if prod(x.spread) != prod(flat.spread):
        raise ExportError(
            f"{name(node)}: several sizes follow the batch, whose product a file cannot have",
            *FIXED_BATCH,
        )
    groups = regroup(x.spread, flat.spread)
    if sum(len(a) for a, _ in groups) != len(x.sizes) or sum(len(b) for _, b in groups) != len(
        sizes
    ):
        groups = [([*range(len(x.sizes))], [*range(len(sizes))])]
    if _flattens_for_layers(node, x, groups):
        result = writer.tensor_like(name(node), node, params=x.params)
        writer.reshape(x, result)
        columns = torch.arange(int(np.prod(x.sizes[1:]))).reshape(x.sizes[1:])
        moved = columns.permute(*(i - 1 for i in x.order[1:])).flatten()
        return replace(result, columns=tuple(moved.tolist()))
    first = {min(x.axis(i) for i in before): (before, after) for before, after in groups}
    ordered = [first[at] for at in sorted(first)]
    order = tuple(i for before, _ in ordered for i in before)
    if x.columns or moves_data(x, order):
        x = writer.in_order(x, order)
    result = writer.tensor_like(
        name(node), node, tuple(i for _, after in ordered for i in after), x.params
    )
    writer.reshape(x, result)
    return result


def _flattens_for_layers(
    node: fx.Node, x: Value, groups: list[tuple[list[int], list[int]]]
) -> bool:
    """Return whether an image [N, ...] becomes [N, columns] that only linear layers read."""
    rank = len(x.sizes)
    flat = [before for before, _ in groups] == [[0], [*range(1, rank)]]
    if G.rank(node) != 2 or not flat or x.order[:1] != (0,) or x.columns:
        return False
    if not moves_data(x, identity(rank)):
        return False
    readers = list(node.users)
    while readers:
        reader = readers.pop()
        if reader.target in (torch_ops.quantize, torch_ops.dequantize):
            readers += reader.users
        elif reader.target not in _LINEAR:
            return False
    return True


def permute(writer: Writer, node: fx.Node, x: Value) -> Value:
    """Change the order only: nothing is written."""
    args: tuple[Any, ...] = node.args
    rank = len(x.sizes)
    if node.target is aten.permute.default:
        axes = [int(a) % rank for a in args[1]]
    else:
        axes = list(range(rank))
        a, b = (int(i) % rank for i in args[1:3])
        axes[a], axes[b] = axes[b], axes[a]
    x = writer.in_order(x, x.order)
    return replace(
        x,
        sizes=tuple(x.sizes[a] for a in axes),
        dynamic=tuple(x.dynamic[a] for a in axes),
        order=tuple(axes.index(i) for i in x.order),
    )


def slice_(writer: Writer, node: fx.Node, x: Value) -> Value:
    """Write STRIDED_SLICE along one axis."""
    axis = int(G.argument(node, 1, "dim", 0)) % len(x.sizes)
    ends = [writer.number(G.argument(node, i, n)) for i, n in ((2, "start"), (3, "end"))]
    step = int(G.argument(node, 4, "step", 1))
    start, end = 0 if ends[0] is None else int(ends[0]), _END if ends[1] is None else int(ends[1])
    size = x.sizes[axis]
    if x.dynamic[axis]:
        if (start, step) == (0, 1) and end >= _INT32_END:
            return x
        raise ExportError(f"{name(node)}: a slice of a dynamic batch cannot be written to TFLite")
    start, end, step = slice(start, end, step).indices(size)
    if (start, end, step) == (0, size, 1):
        return x
    x = writer.in_order(x, x.order)
    result = writer.tensor_like(name(node), node, x.order, x.params)
    return writer.strided(x, result, {axis: (start, end, step)})


def select(writer: Writer, node: fx.Node, x: Value) -> Value:
    """Write STRIDED_SLICE that drops an axis."""
    axis = G.integer(node, 1) % len(x.sizes)
    at = int(writer.number(node.args[2]))
    if x.dynamic[axis]:
        raise ExportError(f"{name(node)}: one sample of a dynamic batch cannot be written")
    at = at % x.sizes[axis]
    x = writer.in_order(x, x.order)
    order = tuple(i - (i > axis) for i in x.order if i != axis)
    result = writer.tensor_like(name(node), node, order, x.params)
    return writer.strided(x, result, {axis: (at, at + 1, 1)}, shrink_axis_mask=1 << x.axis(axis))


def flip(writer: Writer, node: fx.Node, x: Value) -> Value:
    x = writer.in_order(x, x.order)
    args: tuple[Any, ...] = node.args
    for axis in args[1]:
        if x.dynamic[int(axis) % len(x.sizes)]:
            raise ExportError(f"{name(node)}: flipping a dynamic batch cannot be written")
        result = writer.tensor_like(name(node), node, x.order, x.params)
        x = writer.emit("REVERSE_V2", [x, writer.integers([x.axis(int(axis))])], result, 3)
    return x


def expand(writer: Writer, node: fx.Node, x: Value) -> Value:
    """Repeat axes of size 1 with TILE; the batch is read at run time."""
    fake = G.value(node)
    x = writer.in_order(x, identity(len(x.sizes)))
    rank = len(fake.shape)
    if rank > len(x.sizes):
        x = writer.with_rank(x, rank, f"{name(node)}.rank")
    result = writer.tensor_like(name(node), node, params=x.params)
    times = [b if a == 1 else b // a for a, b in zip(x.sizes, result.sizes, strict=True)]
    follows = [b and not a for a, b in zip(x.dynamic, result.dynamic, strict=True)]
    if times == [1] * rank and not any(follows):
        return x
    if not any(follows):
        return writer.emit("TILE", [x, writer.integers(times)], result, 2)
    if follows[0] and not any(follows[1:]):
        source = next(v for v in writer.values.values() if isinstance(v, Value) and any(v.dynamic))
        return writer.emit("TILE", [x, writer.run_time_sizes(source, times)], result, 2)
    raise ExportError(f"{name(node)}: repeats along a dynamic axis cannot be written to TFLite")


def slice_scatter(writer: Writer, node: fx.Node) -> Value:
    """Write what is in front of a part, the part, and what is behind it as CONCATENATION."""
    x, part = (writer.in_graph_order(a) for a in node.args[:2])
    axis = int(G.argument(node, 2, "dim", 0)) % len(x.sizes)
    ends = [writer.number(G.argument(node, i, n)) for i, n in ((3, "start"), (4, "end"))]
    step = int(G.argument(node, 5, "step", 1))
    if x.dynamic[axis] and step == 1 and not ends[0] and (ends[1] is None or ends[1] >= _INT32_END):
        return part  # all of it
    if x.dynamic[axis] or step != 1:
        what = "a strided slice" if step != 1 else "a part of a dynamic batch"
        raise ExportError(f"{name(node)}: replacing {what} cannot be written to TFLite")
    size = x.sizes[axis]
    start, end, _ = slice(*ends).indices(size)
    front, behind = (_kept(writer, node, x, axis, *ends) for ends in ((0, start), (end, size)))
    parts = [*front, part, *behind]
    return part if len(parts) == 1 else concat(writer, node, parts, axis)


def _kept(writer: Writer, node: fx.Node, x: Value, axis: int, begin: int, end: int) -> list[Value]:
    """Return the elements of x from `begin` to `end` of an axis; nothing where there are none."""
    if end <= begin:
        return []
    sizes = [end - begin if i == axis else s for i, s in enumerate(x.sizes)]
    result = writer.tensor(f"{name(node)}.kept", sizes, x.dynamic, x.order, x.params, x.dtype)
    return [writer.strided(x, result, {axis: (begin, end, 1)})]


def copy(writer: Writer, node: fx.Node) -> Value:
    """Return what is copied over a tensor of its shape and type."""
    target, source = (G.value(G.source(node, i)) for i in (0, 1))
    if target.shape != source.shape or target.dtype != source.dtype:
        raise ExportError(f"{name(node)}: a copy that broadcasts cannot be written to TFLite")
    return writer.in_graph_order(node.args[1])


def repeat(writer: Writer, node: fx.Node, x: Value) -> Value:
    times = [int(writer.number(n)) for n in G.items(node, 1)]
    x = writer.in_order(x, identity(len(x.sizes)))
    if len(times) > len(x.sizes):
        x = writer.with_rank(x, len(times), f"{name(node)}.rank")
    result = writer.tensor_like(name(node), node, params=x.params)
    return writer.emit("TILE", [x, writer.integers(times)], result, 2)


def index_select(writer: Writer, node: fx.Node, x: Value) -> Value:
    axis = G.integer(node, 1) % len(x.sizes)
    index = writer.argument(node.args[2])
    x = writer.in_order(x, x.order)
    if isinstance(index, Stored):
        numbers = index.data.to(torch.int64) % x.sizes[axis]
        at: int | Value = writer.integers(numbers.flatten().tolist())
    else:
        at = writer.in_order(index, identity(1))
    result = writer.tensor_like(name(node), node, x.order, x.params)
    return writer.emit("GATHER", [x, at], result, 2, axis=x.axis(axis))


def nearest(writer: Writer, node: fx.Node, x: Value) -> Value:
    x = writer.in_order(x, channels_last(4))
    result = writer.tensor_like(name(node), node, channels_last(4), x.params)
    exact = node.target is aten._upsample_nearest_exact2d.vec
    options = {"half_pixel_centers": exact}
    size = writer.integers(result.sizes[2:])
    return writer.emit("RESIZE_NEAREST_NEIGHBOR", [x, size], result, 3 if exact else 2, **options)


def pixel_shuffle(writer: Writer, node: fx.Node, x: Value) -> Value:
    """Write DEPTH_TO_SPACE, which splits channels as [r, r, C], on channels brought there."""
    factor = G.integer(node, 1)
    x = writer.in_order(x, channels_last(4))
    channels = torch.arange(x.sizes[1]).reshape(-1, factor, factor)
    order = channels.permute(1, 2, 0).flatten().tolist()
    if order != sorted(order):
        moved = writer.tensor_like(f"{name(node)}.channels", x)
        x = writer.emit(
            "GATHER", [x, writer.integers(order)], replace(moved, params=x.params), 2, axis=3
        )
    result = writer.tensor_like(name(node), node, channels_last(4), x.params)
    return writer.emit("DEPTH_TO_SPACE", [x], result, block_size=factor)


def pad(writer: Writer, node: fx.Node, x: Value) -> Value:
    """Write PAD of zeros, or PADV2 with another value."""
    around = pad_widths(writer, node, len(x.sizes))
    if any(x.dynamic[i] for i, ends in enumerate(around) if any(ends)):
        raise ExportError(f"{name(node)}: padding a dynamic batch cannot be written to TFLite")
    if min(map(min, around), default=0) < 0:
        raise ExportError(f"{name(node)}: a pad that crops cannot be written to TFLite; slice")
    x = writer.in_order(x, x.order)
    on_codes = node.target is torch_ops.pad_codes
    fill = G.argument(node, 2, "value", 0)
    result = writer.tensor_like(name(node), node, x.order, x.params)
    table = writer.pads(x, around)
    zero = int(x.params.zero_point) if x.params is not None and on_codes else 0
    if fill == zero:
        return writer.emit("PAD", [x, table], result, 1 if x.params is None else 2)
    if x.params is not None:
        raise ExportError(f"{name(node)}: codes are padded with zero only")
    constant = writer.builder.constant("fill", np.array([fill], result.dtype))
    return writer.emit("PADV2", [x, table, constant], result)


def pad_widths(writer: Writer, node: fx.Node, rank: int) -> list[tuple[int, int]]:
    """Return the widths of a pad before and behind each axis; a call has the last axis first."""
    widths = [int(writer.number(n)) for n in G.items(node, 1)]
    around = [(0, 0)] * rank
    for i in range(len(widths) // 2):
        around[rank - 1 - i] = widths[2 * i], widths[2 * i + 1]
    return around


def concat(writer: Writer, node: fx.Node, parts: Sequence[Value], axis: int) -> Value:
    """Write CONCATENATION of tensors with equal parameters."""
    order: Order = max(parts, key=lambda p: (len(p.sizes), int(np.prod(p.sizes)))).order
    laid_out = [writer.in_order(p, order) for p in parts]
    result = writer.tensor_like(name(node), node, order, parts[0].params)
    version = 1 if result.params is None else 2
    return writer.emit("CONCATENATION", laid_out, result, version, axis=result.axis(axis))


def reduced(
    writer: Writer, node: fx.Node, kind: str, x: Value, at: int, params: QuantParams | None = None
) -> Value:
    """Write a reduction; the arguments of the call have its axes at `at`, then `keepdim`."""
    axes, keep = G.argument(node, at, "dim"), bool(G.argument(node, at + 1, "keepdim", False))
    axes = range(len(x.sizes)) if axes in (None, [], ()) else axes
    gone = {a % len(x.sizes) for a in ([axes] if isinstance(axes, int) else axes)}
    if keep:
        order = x.order
    else:
        rest = [i for i in x.order if i not in gone]
        order = tuple(sorted(rest).index(i) for i in rest)
    result = writer.tensor_like(name(node), node, order, params)
    places = writer.integers(sorted(x.axis(a) for a in gone))
    return writer.emit(kind, [x, places], result, 1 if params is None else 2, keep_dims=keep)


def _same(writer: Writer, node: fx.Node, x: Value) -> Value:
    return x


Move = Callable[[Writer, fx.Node, Value], Value]


def _extreme(kind: str) -> Move:
    def write(writer: Writer, node: fx.Node, x: Value) -> Value:
        return reduced(writer, node, kind, writer.in_order(x, x.order), 1, x.params)

    return write


MOVES: Mapping[Target, Move] = {
    **dict.fromkeys(
        (
            aten.reshape.default,
            aten.view.default,
            torch_ops.reshape,
            aten.flatten.using_ints,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.unsqueeze.default,
        ),
        reshape,
    ),
    aten.permute.default: permute,
    aten.transpose.int: permute,
    aten.slice.Tensor: slice_,
    aten.select.int: select,
    aten.flip.default: flip,
    aten.expand.default: expand,
    aten.repeat.default: repeat,
    aten.tile.default: repeat,
    aten.index_select.default: index_select,
    aten.upsample_nearest2d.vec: nearest,
    aten._upsample_nearest_exact2d.vec: nearest,
    aten.pixel_shuffle.default: pixel_shuffle,
    aten.constant_pad_nd.default: pad,
    torch_ops.pad_codes: pad,
    aten.amax.default: _extreme("REDUCE_MAX"),
    aten.amin.default: _extreme("REDUCE_MIN"),
    torch_ops.idle: _same,
    aten.clone.default: _same,
    aten.contiguous.default: _same,
}
