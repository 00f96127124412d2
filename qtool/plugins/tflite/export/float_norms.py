"""Norms and attention in float, as the operators that TFLite has."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from qtool.core import graph as G
from qtool.core.errors import ExportError
from qtool.plugins.tflite.export.elementwise import aligned, product_operand, write_matmul
from qtool.plugins.tflite.export.layers import name
from qtool.plugins.tflite.export.values import Stored, Value, identity
from qtool.plugins.tflite.export.writer import Writer


def layer_norm(writer: Writer, node: fx.Node) -> Value:
    x = writer.in_graph_order(node.args[0])
    rank, count = len(x.sizes), len(G.items(node, 1))
    x = writer.in_order(x, identity(rank))
    axes = writer.integers(range(rank - count, rank))
    epsilon = float(G.argument(node, 4, "eps", 1e-5))
    centred, variance = _moments(writer, node, x, axes)
    scaled = _normalized(writer, node, x, centred, variance, epsilon)
    return _affine(
        writer, node, scaled, _stored(writer, node, 2, "weight"), _stored(writer, node, 3, "bias")
    )


def _moments(writer: Writer, node: fx.Node, x: Value, axes: int) -> tuple[Value, Value]:
    """Return x - mean, and the variance, over some axes of the tensor."""
    data = writer.builder.tensors[axes].data
    assert data is not None
    places = set(data.tolist())
    sizes = [1 if x.axis(i) in places else s for i, s in enumerate(x.sizes)]
    dynamic = [x.axis(i) not in places and d for i, d in enumerate(x.dynamic)]

    def small(title: str) -> Value:
        return writer.tensor(f"{name(node)}.{title}", sizes, dynamic, x.order)

    mean = writer.emit("MEAN", [x, axes], small("mean"), keep_dims=True)
    centred = writer.emit("SUB", [x, mean], writer.tensor_like(f"{name(node)}.centred", x))
    square = writer.emit("MUL", [centred, centred], writer.tensor_like(f"{name(node)}.square", x))
    return centred, writer.emit("MEAN", [square, axes], small("variance"), keep_dims=True)


def _normalized(
    writer: Writer, node: fx.Node, x: Value, centred: Value, variance: Value, epsilon: float
) -> Value:
    number = writer.scalar("epsilon", epsilon)
    moved = writer.emit(
        "ADD", [variance, number], writer.tensor_like(f"{name(node)}.moved", variance)
    )
    factor = writer.emit("RSQRT", [moved], writer.tensor_like(f"{name(node)}.factor", variance))
    return writer.emit("MUL", [centred, factor], writer.tensor_like(f"{name(node)}.normalized", x))


def _affine(
    writer: Writer,
    node: fx.Node,
    x: Value,
    weight: Value | Stored | None,
    bias: Value | Stored | None,
) -> Value:
    """Multiply by a weight and add a bias, which broadcast from the last axis."""
    for kind, operand in (("MUL", weight), ("ADD", bias)):
        if operand is not None:
            values, order = aligned(writer, [x, operand], len(x.sizes))
            x = writer.emit(kind, values, writer.tensor_like(name(node), node, order))
    return x


def _stored(writer: Writer, node: fx.Node, index: int, title: str) -> Value | Stored | None:
    """Return an argument in float, None where the call has none."""
    argument = G.argument(node, index, title)
    return None if argument is None else _plain(writer.argument(argument))


def _masked(writer: Writer, node: fx.Node, scores: Value, mask: Value | Stored) -> Value:
    """Add a mask to scores, or leave out those for which a boolean mask is False."""
    masked = writer.tensor_like(f"{name(node)}.masked", scores)
    rank = len(scores.sizes)
    kind = mask.dtype if isinstance(mask, Value) else str(mask.data.dtype)
    if "bool" not in kind:
        values, _ = aligned(writer, [scores, _plain(mask)], rank)
        return writer.emit("ADD", values, masked)
    (_, condition), _ = aligned(writer, [scores, mask], rank)
    lowest = writer.scalar("lowest", torch.finfo(torch.float32).min)
    return writer.emit("SELECT_V2", [condition, scores, lowest], masked)


def _plain(value: Value | Stored) -> Value | Stored:
    return value if isinstance(value, Value) else value.in_float()


def rms_norm(writer: Writer, node: fx.Node) -> Value:
    x = writer.in_order(writer.floats(node.args[0]), identity(G.rank(node)))
    rank, count = len(x.sizes), len(G.items(node, 1))
    axes = writer.integers(range(rank - count, rank))
    epsilon = G.argument(node, 3, "eps")
    epsilon = torch.finfo(torch.float32).eps if epsilon is None else float(epsilon)
    square = writer.emit("MUL", [x, x], writer.tensor_like(f"{name(node)}.square", x))
    sizes = [1 if i >= rank - count else s for i, s in enumerate(x.sizes)]
    mean = writer.tensor(f"{name(node)}.mean", sizes, x.dynamic, x.order)
    writer.emit("MEAN", [square, axes], mean, keep_dims=True)
    scaled = _normalized(writer, node, x, x, mean, epsilon)
    return _affine(writer, node, scaled, _stored(writer, node, 2, "weight"), None)


def group_norm(writer: Writer, node: fx.Node) -> Value:
    """Normalize groups of channels: an image as [N, groups, elements]."""
    x = writer.in_order(writer.floats(node.args[0]), identity(G.rank(node)))
    groups = G.integer(node, 1)
    elements = math.prod(x.sizes[1:]) // groups
    flat = writer.tensor(
        f"{name(node)}.groups",
        (x.sizes[0], groups, elements),
        (x.dynamic[0], False, False),
        identity(3),
    )
    writer.reshape(x, flat)
    centred, variance = _moments(writer, node, flat, writer.integers([2]))
    epsilon = float(G.argument(node, 4, "eps", 1e-5))
    scaled = _normalized(writer, node, flat, centred, variance, epsilon)
    image = writer.tensor_like(f"{name(node)}.image", x)
    writer.reshape(scaled, image)
    per_channel = []
    for index, title in ((2, "weight"), (3, "bias")):
        stored = _stored(writer, node, index, title)
        assert not isinstance(stored, Value)
        column = (-1, *[1] * (len(x.sizes) - 2))
        per_channel.append(stored and replace(stored, data=stored.data.reshape(column)))
    return _affine(writer, node, image, *per_channel)


def _real(writer: Writer, argument: Argument) -> torch.Tensor | None:
    """Return a stored tensor in float64; None for None."""
    if argument is None:
        return None
    stored = writer.argument(argument)
    assert isinstance(stored, Stored)
    return stored.real().double()


def batch_norm(writer: Writer, node: fx.Node) -> Value:
    """Multiply and add per channel; statistics are stored."""
    x: Value = writer.in_graph_order(node.args[0])
    weight, bias = (_real(writer, a) for a in node.args[1:3])
    mean, variance = (_real(writer, a) for a in node.args[3:5])
    epsilon = G.number(node, 7 if len(node.args) > 8 else 6)
    assert mean is not None
    assert variance is not None
    factor = (variance + epsilon).rsqrt()
    factor = factor if weight is None else factor * weight
    offset = -mean * factor
    offset = offset if bias is None else offset + bias
    shape = [-1, *[1] * (len(x.sizes) - 2)]
    constants = (
        Stored(f"{name(node)}.{kind}", data.float().detach().reshape(shape))
        for kind, data in (("mul", factor), ("add", offset))
    )
    return _affine(writer, node, x, *constants)


def attention(writer: Writer, node: fx.Node) -> Value:
    """Write softmax(q k / sqrt(d) + mask) v."""
    query, key, value = (writer.floats(n) for n in node.args[:3])
    mask = G.argument(node, 3, "attn_mask")
    if node.kwargs.get("enable_gqa"):
        raise ExportError(f"{name(node)}: attention of groups of heads cannot be written to TFLite")
    rank, width = len(query.sizes), query.sizes[-1]
    scale: Any = node.kwargs.get("scale")
    factor = width**-0.5 if scale is None else float(scale)
    query = writer.in_order(query, identity(rank))
    number = writer.scalar("scale", factor)
    scaled = writer.emit("MUL", [query, number], writer.tensor_like(f"{name(node)}.query", query))
    sizes = (*query.sizes[:-1], key.sizes[-2])
    moves = (*query.dynamic[:-1], key.dynamic[-2])
    plain = identity(rank)
    key, transposed = product_operand(writer, key, may_be_transposed=True)
    scores = writer.tensor(f"{name(node)}.scores", sizes, moves, plain)
    writer.emit("BATCH_MATMUL", [scaled, key], scores, adj_y=not transposed)
    causal = bool(G.argument(node, 5, "is_causal", False))
    masks = [] if mask is None else [writer.argument(mask)]
    if causal:
        allowed = torch.ones(sizes[-2:], dtype=torch.bool).tril()
        masks.append(Stored(f"{name(node)}.causal", allowed))
    for each in masks:
        scores = _masked(writer, node, scores, each)
    weights = writer.tensor(f"{name(node)}.weights", sizes, moves, plain)
    writer.emit("SOFTMAX", [scores], weights, beta=1.0)
    return write_matmul(writer, node, weights, value, None)
