"""Operators that stay in float, between DEQUANTIZE and QUANTIZE."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx

from qtool.backends.tflite.export import layers
from qtool.backends.tflite.export.elementwise import aligned, last_axis, write_matmul
from qtool.backends.tflite.export.layers import name
from qtool.backends.tflite.export.values import Stored, Value, channels_last, identity
from qtool.backends.tflite.export.writer import DTYPES, Writer
from qtool.core import graph as G
from qtool.core.errors import ExportError
from qtool.core.graph import torch_ops

aten = torch.ops.aten
Write = Callable[[Writer, fx.Node], Value | Stored]


def _unary(kind: str, version: int = 1, **options: Any) -> Write:
    def write(w: Writer, node: fx.Node) -> Value:
        x = _whole(w, w.floats(node.args[0]))
        values = {k: v(node) if callable(v) else v for k, v in options.items()}
        return w.emit(kind, [x], w.new(name(node), node, x.order), version, **values)

    return write


def _whole(w: Writer, x: Value) -> Value:
    return w.in_order(x, x.order)


def _binary(kind: str, version: int = 1) -> Write:
    def write(w: Writer, node: fx.Node) -> Value:
        a, b = (_operand(w, node, n) for n in node.args[:2])
        factor: Any = node.kwargs.get("alpha", 1)
        if factor != 1:
            b = _times(w, node, b, float(factor))
        return _apply(w, node, kind, [a, b], version)

    return write


def _apply(
    w: Writer, node: fx.Node, kind: str, operands: Sequence[Value | Stored], version: int = 1
) -> Value:
    values, order = aligned(w, operands, G.rank(node))
    return w.emit(kind, values, w.new(name(node), node, order), version)


def _operand(w: Writer, node: fx.Node, argument: Any) -> Value | Stored:
    """Return an operand in float, or of the common type of both; a constant stays stored."""
    value = w.argument(argument)
    if isinstance(value, Value):
        return w.floats(argument) if value.params is not None else value
    real = value.real().detach()
    types = [G.value(n).dtype for n in node.all_input_nodes if G.is_tensor(n)]
    wanted = next((t for t in types if t.is_floating_point), types[0] if types else real.dtype)
    return Stored(value.name, real.to(wanted))


def _times(w: Writer, node: fx.Node, value: Value | Stored, factor: float) -> Value | Stored:
    if isinstance(value, Stored):
        return replace(value, data=value.data * factor)
    number = w.stored(Stored("factor", torch.tensor(factor)), ())
    result = w.new(f"{name(node)}.factor", value)
    return w.emit("MUL", [_whole(w, value), number], result)


def _swapped(kind: str) -> Write:
    """The first operand is subtracted from the second (rsub)."""

    def write(w: Writer, node: fx.Node) -> Value:
        a, b = (_operand(w, node, n) for n in node.args[:2])
        return _apply(w, node, kind, [b, a])

    return write


def _clamp(w: Writer, node: fx.Node) -> Value:
    low, high = G.argument(node, 1, "min"), G.argument(node, 2, "max")
    x: Value = _whole(w, w.floats(node.args[0]))
    for kind, bound in (("MAXIMUM", low), ("MINIMUM", high)):
        if bound is None:
            continue
        number = (
            w.floats(bound)
            if isinstance(bound, fx.Node) and G.is_tensor(bound)
            else w.stored(Stored("bound", torch.tensor(float(w.number(bound)))), ())
        )
        x = w.emit(kind, [x, number], w.new(name(node), node, x.order))
    return x


def _hard_sigmoid(w: Writer, node: fx.Node) -> Value:
    """relu6(x + 3) / 6"""
    x = _whole(w, w.floats(node.args[0]))
    three, sixth = (w.stored(Stored("number", torch.tensor(v)), ()) for v in (3.0, 1 / 6))
    moved = w.new(f"{name(node)}.moved", node, x.order)
    w.emit("ADD", [x, three], moved, fused_activation_function=3)
    return w.emit("MUL", [moved, sixth], w.new(name(node), node, x.order))


def _silu(w: Writer, node: fx.Node) -> Value:
    x = _whole(w, w.floats(node.args[0]))
    gate = w.emit("LOGISTIC", [x], w.new(f"{name(node)}.gate", node, x.order))
    return w.emit("MUL", [x, gate], w.new(name(node), node, x.order))


def _softmax(w: Writer, node: fx.Node) -> Value:
    x = last_axis(w, w.floats(node.args[0]), int(node.args[1]))  # type: ignore[arg-type]  # a number
    return w.emit("SOFTMAX", [x], w.new(name(node), node, x.order), beta=1.0)


def _log_softmax(w: Writer, node: fx.Node) -> Value:
    x = last_axis(w, w.floats(node.args[0]), int(node.args[1]))  # type: ignore[arg-type]  # a number
    return w.emit("LOG_SOFTMAX", [x], w.new(name(node), node, x.order))


def _reduce(kind: str) -> Write:
    def write(w: Writer, node: fx.Node) -> Value:
        x = _whole(w, w.floats(node.args[0]))
        axes = G.argument(node, 1, "dim")
        axes = list(range(len(x.sizes))) if axes in (None, [], ()) else axes
        axes = [axes] if isinstance(axes, int) else list(axes)
        keep = bool(G.argument(node, 2, "keepdim", False))
        return _reduced(w, node, kind, x, axes, keep)

    return write


def _reduced(
    w: Writer, node: fx.Node, kind: str, x: Value, axes: Sequence[int], keep: bool
) -> Value:
    gone = {a % len(x.sizes) for a in axes}
    if keep:
        order = x.order
    else:
        rest = [i for i in x.order if i not in gone]
        order = tuple(sorted(rest).index(i) for i in rest)
    result = w.new(name(node), node, order)
    places = w.integers(sorted(x.axis(a) for a in gone))
    return w.emit(kind, [x, places], result, keep_dims=keep)


def _layer_norm(w: Writer, node: fx.Node) -> Value:
    x = _whole(w, w.floats(node.args[0]))
    rank, count = len(x.sizes), len(node.args[1])  # type: ignore[arg-type]  # a list
    x = w.in_order(x, identity(rank))
    axes = w.integers(range(rank - count, rank))
    epsilon = float(G.argument(node, 4, "eps", 1e-5))
    centred, variance = _moments(w, node, x, axes)
    scaled = _normalized(w, node, x, centred, variance, epsilon)
    return _affine(w, node, scaled, G.argument(node, 2, "weight"), G.argument(node, 3, "bias"))


def _moments(w: Writer, node: fx.Node, x: Value, axes: int) -> tuple[Value, Value]:
    """Return x - mean, and the variance, over some axes of the tensor."""
    places = set(w.builder.tensors[axes].data.tolist())  # type: ignore[union-attr]  # a constant
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
    number = w.stored(Stored("epsilon", torch.tensor(epsilon)), ())
    moved = w.emit("ADD", [variance, number], w.new(f"{name(node)}.moved", variance))
    factor = w.emit("RSQRT", [moved], w.new(f"{name(node)}.factor", variance))
    return w.emit("MUL", [centred, factor], w.new(f"{name(node)}.normalized", x))


def _affine(w: Writer, node: fx.Node, x: Value, weight: Any, bias: Any) -> Value:
    """Multiply by a weight and add a bias, along the last axes."""
    for kind, argument in (("MUL", weight), ("ADD", bias)):
        if argument is not None:
            values, order = aligned(w, [x, _plain(w.argument(argument))], len(x.sizes))
            x = w.emit(kind, values, w.new(name(node), node, order))
    return x


def _plain(value: Value | Stored) -> Value | Stored:
    return value if isinstance(value, Value) else Stored(value.name, value.real().detach())


def _rms_norm(w: Writer, node: fx.Node) -> Value:
    x = w.in_order(w.floats(node.args[0]), identity(G.rank(node)))
    rank, count = len(x.sizes), len(node.args[1])  # type: ignore[arg-type]  # a list
    axes = w.integers(range(rank - count, rank))
    epsilon = G.argument(node, 3, "eps")
    epsilon = torch.finfo(torch.float32).eps if epsilon is None else float(epsilon)
    square = w.emit("MUL", [x, x], w.new(f"{name(node)}.square", x))
    sizes = [1 if i >= rank - count else s for i, s in enumerate(x.sizes)]
    mean = w.add(f"{name(node)}.mean", sizes, x.dynamic, x.order)
    w.emit("MEAN", [square, axes], mean, keep_dims=True)
    scaled = _normalized(w, node, x, x, mean, epsilon)
    return _affine(w, node, scaled, G.argument(node, 2, "weight"), None)


def _group_norm(w: Writer, node: fx.Node) -> Value:
    """Normalize groups of channels: an image as [N, groups, elements]."""
    x = w.in_order(w.floats(node.args[0]), identity(G.rank(node)))
    groups = int(node.args[1])  # type: ignore[arg-type]  # a number
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
    for kind, index in (("MUL", 2), ("ADD", 3)):
        argument = G.argument(node, index, ("weight", "bias")[index - 2])
        if argument is not None:
            stored = w.argument(argument)
            assert isinstance(stored, Stored)
            data = stored.real().detach().reshape(-1, *[1] * (len(x.sizes) - 2))
            values, order = aligned(w, [image, Stored(stored.name, data)], len(x.sizes))
            image = w.emit(kind, values, w.new(name(node), node, order))
    return image


def _batch_norm(w: Writer, node: fx.Node) -> Value:
    """Multiply and add per channel; statistics are stored."""
    x: Value = _whole(w, w.floats(node.args[0]))
    weight, bias, mean, variance = (None if a is None else w.argument(a) for a in node.args[1:5])
    epsilon = float(node.args[7 if len(node.args) > 8 else 6])  # type: ignore[arg-type]  # a number
    assert isinstance(mean, Stored)
    assert isinstance(variance, Stored)
    factor = (variance.real().double() + epsilon).rsqrt()
    factor = factor if weight is None else factor * weight.real().double()  # type: ignore[union-attr]  # stored
    offset = -mean.real().double() * factor
    offset = offset if bias is None else offset + bias.real().double()  # type: ignore[union-attr]  # stored
    shape = [-1, *[1] * (len(x.sizes) - 2)]
    for kind, data in (("MUL", factor), ("ADD", offset)):
        constant = Stored(f"{name(node)}.{kind.lower()}", data.float().detach().reshape(shape))
        values, order = aligned(w, [x, constant], len(x.sizes))
        x = w.emit(kind, values, w.new(name(node), node, order))
    return x


def _attention(w: Writer, node: fx.Node) -> Value:
    """Write softmax(q k / sqrt(d) + mask) v."""
    query, key, value = (w.floats(n) for n in node.args[:3])
    mask = G.argument(node, 3, "attn_mask")
    if G.argument(node, 5, "is_causal", False) or node.kwargs.get("enable_gqa"):
        raise ExportError(f"{name(node)}: causal attention cannot be written to TFLite yet")
    rank, width = len(query.sizes), query.sizes[-1]
    scale: Any = node.kwargs.get("scale")
    factor = width**-0.5 if scale is None else float(scale)
    query = w.in_order(query, identity(rank))
    number = w.stored(Stored("scale", torch.tensor(factor)), ())
    scaled = w.emit("MUL", [query, number], w.new(f"{name(node)}.query", query))
    sizes = (*query.sizes[:-1], key.sizes[-2])
    moves = (*query.dynamic[:-1], key.dynamic[-2])
    plain = identity(rank)
    swapped = (*plain[:-2], rank - 1, rank - 2)
    transposed = key.order == swapped
    key = key if transposed else w.in_order(key, plain)
    scores = w.add(f"{name(node)}.scores", sizes, moves, plain)
    w.emit("BATCH_MATMUL", [scaled, key], scores, adj_y=not transposed)
    if mask is not None:
        stored = w.argument(mask)
        if "bool" in (stored.dtype if isinstance(stored, Value) else str(stored.data.dtype)):
            raise ExportError(f"{name(node)}: a boolean attention mask cannot be written yet")
        values, _ = aligned(w, [scores, _plain(stored)], rank)
        scores = w.emit("ADD", values, w.add(f"{name(node)}.masked", sizes, moves, plain))
    weights = w.add(f"{name(node)}.weights", sizes, moves, plain)
    w.emit("SOFTMAX", [scores], weights, beta=1.0)
    return write_matmul(w, node, weights, value, None)


def _matmul(w: Writer, node: fx.Node) -> Value:
    a, b = (w.floats(n) for n in node.args[:2])
    return write_matmul(w, node, a, b, None)


def _where(w: Writer, node: fx.Node) -> Value:
    condition = w.argument(node.args[0])
    branches = [_operand(w, node, n) for n in node.args[1:3]]
    wanted = G.value(node).dtype
    branches = [
        replace(b, data=b.data.to(wanted)) if isinstance(b, Stored) else b for b in branches
    ]
    return _apply(w, node, "SELECT_V2", [condition, *branches])


def _cast(w: Writer, node: fx.Node) -> Value | Stored:
    value = w.argument(node.args[0])
    wanted = G.value(node).dtype
    if isinstance(value, Stored):
        return Stored(value.name, value.real().to(wanted))
    x = w.floats(node.args[0]) if value.params is not None else value
    if x.dtype == DTYPES.get(wanted):
        return x
    x = _whole(w, x)
    return w.emit("CAST", [x], w.new(name(node), node, x.order))


def _embedding(w: Writer, node: fx.Node) -> Value:
    """Write GATHER of rows."""
    at = [0, 1] if node.target in (torch_ops.embedding, torch_ops.embedding_codes) else [1, 0]
    ids, table = (w.argument(node.args[i]) for i in at)
    assert isinstance(ids, Value)
    assert isinstance(table, Stored)
    real = table.real()
    if node.target is torch_ops.embedding_codes:
        scale = w.argument(node.args[2])
        assert isinstance(scale, Stored)
        real = table.data.float() * scale.data[:, None]
    rows = w.stored(Stored(table.name, real.detach()), identity(2))
    ids = w.in_order(ids, identity(len(ids.sizes)))
    return w.emit("GATHER", [rows, ids], w.new(name(node), node), 2, axis=0)


def _bilinear(w: Writer, node: fx.Node) -> Value:
    x = w.in_order(w.floats(node.args[0]), channels_last(4))
    result = w.new(name(node), node, channels_last(4))
    corners = bool(node.args[2])
    size = w.integers(result.sizes[2:])
    options = {"align_corners": corners, "half_pixel_centers": not corners}
    return w.emit("RESIZE_BILINEAR", [x, size], result, 3, **options)


def _conv(w: Writer, node: fx.Node) -> Value:
    _require_plain_weight(w, node)
    return layers.conv(w, node, None, (None, None))


def _conv_transpose(w: Writer, node: fx.Node) -> Value:
    _require_plain_weight(w, node)
    dilation, groups = node.args[7], node.args[6]
    if any(d != 1 for d in dilation) or groups != 1:  # type: ignore[union-attr]  # a list
        raise ExportError(f"{name(node)}: TFLite's TRANSPOSE_CONV has no groups and no dilation")
    return layers.conv_transpose(w, node, None, (None, None))


def _require_plain_weight(w: Writer, node: fx.Node) -> None:
    """Dequantize a stored weight: a float layer with integer weights takes them in float."""
    for i in (1, 2):
        argument = node.args[i]
        if isinstance(argument, fx.Node):
            value = w.argument(argument)
            if isinstance(value, Stored) and value.params is not None:
                w.values[argument] = Stored(value.name, value.real())
    if len(G.value(node).shape) > 4:
        raise ExportError(
            f"{name(node)}: TFLite files hold convolutions over one or two dimensions"
        )


def _linear(w: Writer, node: fx.Node) -> Value:
    """Write FULLY_CONNECTED in float; the weight of a Gemm is [in, out]."""
    _require_plain_weight(w, node)
    if node.target is torch_ops.gemm:
        weight = node.args[1]
        assert isinstance(weight, fx.Node)
        stored = w.argument(weight)
        assert isinstance(stored, Stored)
        w.values[weight] = Stored(f"{stored.name}.transposed", stored.data.t())
        result = layers.linear(w, node, None, (None, None))
        w.values[weight] = stored
        return result
    return layers.linear(w, node, None, (None, None))


def _average_pool(w: Writer, node: fx.Node) -> Value:
    w.values[node.args[0]] = w.floats(node.args[0])  # type: ignore[index]  # a node
    return layers.average_pool(w, node, None, (None, None))


def _global_average_pool(w: Writer, node: fx.Node) -> Value:
    return layers.global_average_pool(w, node, None, (None, None))


def _prelu(w: Writer, node: fx.Node) -> Value:
    x = _whole(w, w.floats(node.args[0]))
    slope = w.argument(node.args[1])
    assert isinstance(slope, Stored)
    shape = [1] * len(x.sizes)
    shape[1 if len(x.sizes) > 1 else 0] = slope.data.numel()
    data = slope.real().detach().reshape(shape).permute(*x.order)[0]
    index = w.builder.constant(slope.name, np.ascontiguousarray(data.numpy()))
    return w.emit("PRELU", [x, index], w.new(name(node), node, x.order))


def _power(w: Writer, node: fx.Node) -> Value:
    exponent = node.args[1]
    if exponent == 2:
        x = _whole(w, w.floats(node.args[0]))
        return w.emit("MUL", [x, x], w.new(name(node), node, x.order))
    return _apply(w, node, "POW", [_operand(w, node, n) for n in node.args[:2]])


def _arg_max(kind: str) -> Write:
    def write(w: Writer, node: fx.Node) -> Value:
        x = w.floats(node.args[0])
        axis, keep = G.argument(node, 1, "dim"), bool(G.argument(node, 2, "keepdim", False))
        if axis is None:
            raise ExportError(f"{name(node)}: {kind} over all axes cannot be written to TFLite")
        x = w.in_order(x, identity(len(x.sizes)))
        index = w.integers([int(axis) % len(x.sizes)])
        result = w.new(name(node), node)
        if not keep:
            return w.emit(kind, [x, index], result, output_type=4)
        sizes = [s for i, s in enumerate(x.sizes) if i != axis % len(x.sizes)]
        moves = [s for i, s in enumerate(x.dynamic) if i != axis % len(x.sizes)]
        flat = w.add(f"{name(node)}.flat", sizes, moves, identity(len(sizes)), dtype="int64")
        w.emit(kind, [x, index], flat, output_type=4)
        w.reshape(flat, result)
        return result

    return write


FLOAT: Mapping[Any, Write] = {
    aten.add.Tensor: _binary("ADD"),
    aten.add.Scalar: _binary("ADD"),
    aten.sub.Tensor: _binary("SUB"),
    aten.sub.Scalar: _binary("SUB"),
    aten.rsub.Scalar: _swapped("SUB"),
    aten.mul.Tensor: _binary("MUL"),
    aten.mul.Scalar: _binary("MUL"),
    torch_ops.rescale: _binary("MUL"),
    aten.div.Tensor: _binary("DIV"),
    aten.div.Scalar: _binary("DIV"),
    aten.maximum.default: _binary("MAXIMUM"),
    aten.minimum.default: _binary("MINIMUM"),
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: _power,
    aten.abs.default: _unary("ABS"),
    aten.neg.default: _unary("NEG"),
    aten.exp.default: _unary("EXP"),
    aten.log.default: _unary("LOG"),
    aten.sqrt.default: _unary("SQRT"),
    aten.rsqrt.default: _unary("RSQRT"),
    aten.sin.default: _unary("SIN"),
    aten.cos.default: _unary("COS"),
    aten.floor.default: _unary("FLOOR"),
    aten.ceil.default: _unary("CEIL"),
    aten.round.default: _unary("ROUND"),
    aten.sigmoid.default: _unary("LOGISTIC"),
    aten.tanh.default: _unary("TANH"),
    aten.relu.default: _unary("RELU"),
    aten.clamp.default: _clamp,
    aten.leaky_relu.default: _unary(
        "LEAKY_RELU", alpha=lambda n: float(G.argument(n, 1, "negative_slope", 0.01))
    ),
    aten.gelu.default: _unary(
        "GELU", approximate=lambda n: G.argument(n, 1, "approximate", "none") == "tanh"
    ),
    aten.hardswish.default: _unary("HARD_SWISH"),
    aten.hardsigmoid.default: _hard_sigmoid,
    aten.silu.default: _silu,
    aten.elu.default: _unary("ELU"),
    aten.prelu.default: _prelu,
    aten.softmax.int: _softmax,
    aten.log_softmax.int: _log_softmax,
    aten.mean.dim: _reduce("MEAN"),
    aten.sum.dim_IntList: _reduce("SUM"),
    aten.amax.default: _reduce("REDUCE_MAX"),
    aten.amin.default: _reduce("REDUCE_MIN"),
    aten.argmax.default: _arg_max("ARG_MAX"),
    aten.argmin.default: _arg_max("ARG_MIN"),
    aten.layer_norm.default: _layer_norm,
    aten.rms_norm.default: _rms_norm,
    aten.group_norm.default: _group_norm,
    aten.scaled_dot_product_attention.default: _attention,
    aten.matmul.default: _matmul,
    aten.bmm.default: _matmul,
    aten.mm.default: _matmul,
    aten.where.self: _where,
    aten.where.ScalarOther: _where,
    aten.where.ScalarSelf: _where,
    aten._to_copy.default: _cast,
    aten.to.dtype: _cast,
    aten.embedding.default: _embedding,
    torch_ops.embedding: _embedding,
    torch_ops.embedding_codes: _embedding,
    aten.upsample_bilinear2d.vec: _bilinear,
    torch_ops.conv: _conv,
    torch_ops.conv_transpose: _conv_transpose,
    torch_ops.average_pool: _average_pool,
    torch_ops.global_average_pool: _global_average_pool,
    aten.linear.default: _linear,
    torch_ops.gemm: _linear,
    aten.eq.Scalar: _binary("EQUAL"),
    aten.eq.Tensor: _binary("EQUAL"),
    aten.ne.Scalar: _binary("NOT_EQUAL"),
    aten.ne.Tensor: _binary("NOT_EQUAL"),
    aten.gt.Scalar: _binary("GREATER"),
    aten.gt.Tensor: _binary("GREATER"),
    aten.ge.Scalar: _binary("GREATER_EQUAL"),
    aten.ge.Tensor: _binary("GREATER_EQUAL"),
    aten.lt.Scalar: _binary("LESS"),
    aten.lt.Tensor: _binary("LESS"),
    aten.le.Scalar: _binary("LESS_EQUAL"),
    aten.le.Tensor: _binary("LESS_EQUAL"),
    aten.logical_and.default: _binary("LOGICAL_AND"),
    aten.logical_or.default: _binary("LOGICAL_OR"),
    aten.logical_not.default: _unary("LOGICAL_NOT"),
    aten.batch_norm.default: _batch_norm,
}
"""Torch operator -> writer of its form in float."""
