"""Norms and attention in float, as the operators that TFLite has."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from qtool.backends.tflite.export.elementwise import aligned, product_operand, write_matmul
from qtool.backends.tflite.export.layers import name
from qtool.backends.tflite.export.values import Stored, Value, identity
from qtool.backends.tflite.export.writer import Writer
from qtool.core import graph as G
from qtool.core.errors import ExportError


def layer_norm(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    rank, count = len(x.sizes), len(G.items(node, 1))
    x = w.in_order(x, identity(rank))
    axes = w.integers(range(rank - count, rank))
    epsilon = float(G.argument(node, 4, "eps", 1e-5))
    centred, variance = _moments(w, node, x, axes)
    scaled = _normalized(w, node, x, centred, variance, epsilon)
    return _affine(w, node, scaled, _stored(w, node, 2, "weight"), _stored(w, node, 3, "bias"))


def _moments(w: Writer, node: fx.Node, x: Value, axes: int) -> tuple[Value, Value]:
    """Return x - mean, and the variance, over some axes of the tensor."""
    data = w.builder.tensors[axes].data
    assert data is not None
    places = set(data.tolist())
    sizes = [1 if x.axis(i) in places else s for i, s in enumerate(x.sizes)]
    dynamic = [x.axis(i) not in places and d for i, d in enumerate(x.dynamic)]

    def small(title: str) -> Value:
        return w.add(f"{name(node)}.{title}", sizes, dynamic, x.order)

    mean = w.emit("MEAN", [x, axes], small("mean"), keep_dims=True)
    centred = w.emit("SUB", [x, mean], w.new(f"{name(node)}.centred", x))
    square = w.emit("MUL", [centred, centred], w.new(f"{name(node)}.square", x))
    return centred, w.emit("MEAN", [square, axes], small("variance"), keep_dims=True)


def _normalized(
    w: Writer, node: fx.Node, x: Value, centred: Value, variance: Value, epsilon: float
) -> Value:
    number = w.stored(Stored("epsilon", torch.tensor(epsilon, dtype=torch.float32)), ())
    moved = w.emit("ADD", [variance, number], w.new(f"{name(node)}.moved", variance))
    factor = w.emit("RSQRT", [moved], w.new(f"{name(node)}.factor", variance))
    return w.emit("MUL", [centred, factor], w.new(f"{name(node)}.normalized", x))


def _affine(
    w: Writer, node: fx.Node, x: Value, weight: Value | Stored | None, bias: Value | Stored | None
) -> Value:
    """Multiply by a weight and add a bias, which broadcast from the last axis."""
    for kind, operand in (("MUL", weight), ("ADD", bias)):
        if operand is not None:
            values, order = aligned(w, [x, operand], len(x.sizes))
            x = w.emit(kind, values, w.new(name(node), node, order))
    return x


def _stored(w: Writer, node: fx.Node, index: int, title: str) -> Value | Stored | None:
    """Return an argument in float, None where the call has none."""
    argument = G.argument(node, index, title)
    return None if argument is None else _plain(w.argument(argument))


def _masked(w: Writer, node: fx.Node, scores: Value, mask: Value | Stored) -> Value:
    """Add a mask to scores, or leave out those for which a boolean mask is False."""
    masked = w.new(f"{name(node)}.masked", scores)
    rank = len(scores.sizes)
    kind = mask.dtype if isinstance(mask, Value) else str(mask.data.dtype)
    if "bool" not in kind:
        values, _ = aligned(w, [scores, _plain(mask)], rank)
        return w.emit("ADD", values, masked)
    (_, condition), _ = aligned(w, [scores, mask], rank)
    lowest = w.stored(
        Stored("lowest", torch.tensor(torch.finfo(torch.float32).min, dtype=torch.float32)), ()
    )
    return w.emit("SELECT_V2", [condition, scores, lowest], masked)


def _plain(value: Value | Stored) -> Value | Stored:
    return value if isinstance(value, Value) else value.in_float()


def rms_norm(w: Writer, node: fx.Node) -> Value:
    x = w.in_order(w.floats(node.args[0]), identity(G.rank(node)))
    rank, count = len(x.sizes), len(G.items(node, 1))
    axes = w.integers(range(rank - count, rank))
    epsilon = G.argument(node, 3, "eps")
    epsilon = torch.finfo(torch.float32).eps if epsilon is None else float(epsilon)
    square = w.emit("MUL", [x, x], w.new(f"{name(node)}.square", x))
    sizes = [1 if i >= rank - count else s for i, s in enumerate(x.sizes)]
    mean = w.add(f"{name(node)}.mean", sizes, x.dynamic, x.order)
    w.emit("MEAN", [square, axes], mean, keep_dims=True)
    scaled = _normalized(w, node, x, x, mean, epsilon)
    return _affine(w, node, scaled, _stored(w, node, 2, "weight"), None)


def group_norm(w: Writer, node: fx.Node) -> Value:
    """Normalize groups of channels: an image as [N, groups, elements]."""
    x = w.in_order(w.floats(node.args[0]), identity(G.rank(node)))
    groups = G.integer(node, 1)
    elements = math.prod(x.sizes[1:]) // groups
    flat = w.add(
        f"{name(node)}.groups",
        (x.sizes[0], groups, elements),
        (x.dynamic[0], False, False),
        identity(3),
    )
    w.reshape(x, flat)
    centred, variance = _moments(w, node, flat, w.integers([2]))
    epsilon = float(G.argument(node, 4, "eps", 1e-5))
    scaled = _normalized(w, node, flat, centred, variance, epsilon)
    image = w.new(f"{name(node)}.image", x)
    w.reshape(scaled, image)
    per_channel = []
    for index, title in ((2, "weight"), (3, "bias")):
        stored = _stored(w, node, index, title)
        assert not isinstance(stored, Value)
        column = (-1, *[1] * (len(x.sizes) - 2))
        per_channel.append(stored and replace(stored, data=stored.data.reshape(column)))
    return _affine(w, node, image, *per_channel)


def _real(w: Writer, argument: Any) -> torch.Tensor | None:
    """Return a stored tensor in float64; None for None."""
    if argument is None:
        return None
    stored = w.argument(argument)
    assert isinstance(stored, Stored)
    return stored.real().double()


def batch_norm(w: Writer, node: fx.Node) -> Value:
    """Multiply and add per channel; statistics are stored."""
    x: Value = w.whole(node.args[0])
    weight, bias = (_real(w, a) for a in node.args[1:3])
    mean, variance = (_real(w, a) for a in node.args[3:5])
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
    return _affine(w, node, x, *constants)


def attention(w: Writer, node: fx.Node) -> Value:
    """Write softmax(q k / sqrt(d) + mask) v."""
    query, key, value = (w.floats(n) for n in node.args[:3])
    mask = G.argument(node, 3, "attn_mask")
    if node.kwargs.get("enable_gqa"):
        raise ExportError(f"{name(node)}: attention of groups of heads cannot be written to TFLite")
    rank, width = len(query.sizes), query.sizes[-1]
    scale: Any = node.kwargs.get("scale")
    factor = width**-0.5 if scale is None else float(scale)
    query = w.in_order(query, identity(rank))
    number = w.stored(Stored("scale", torch.tensor(factor, dtype=torch.float32)), ())
    scaled = w.emit("MUL", [query, number], w.new(f"{name(node)}.query", query))
    sizes = (*query.sizes[:-1], key.sizes[-2])
    moves = (*query.dynamic[:-1], key.dynamic[-2])
    plain = identity(rank)
    key, transposed = product_operand(w, key, may_be_transposed=True)
    scores = w.add(f"{name(node)}.scores", sizes, moves, plain)
    w.emit("BATCH_MATMUL", [scaled, key], scores, adj_y=not transposed)
    causal = bool(G.argument(node, 5, "is_causal", False))
    masks = [] if mask is None else [w.argument(mask)]
    if causal:
        allowed = torch.ones(sizes[-2:], dtype=torch.bool).tril()
        masks.append(Stored(f"{name(node)}.causal", allowed))
    for each in masks:
        scores = _masked(w, node, scores, each)
    weights = w.add(f"{name(node)}.weights", sizes, moves, plain)
    w.emit("SOFTMAX", [scores], weights, beta=1.0)
    return write_matmul(w, node, weights, value, None)
