"""Operators that stay in float, between DEQUANTIZE and QUANTIZE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx

from qtool.backends.tflite.export import float_layers, float_norms
from qtool.backends.tflite.export.elementwise import aligned, last_axis, write_matmul
from qtool.backends.tflite.export.layers import name
from qtool.backends.tflite.export.values import Stored, Value, channels_last, identity
from qtool.backends.tflite.export.writer import DTYPES, Writer
from qtool.backends.tflite.file.schema import ELEMENT_TYPES
from qtool.core import graph as G
from qtool.core.errors import ExportError
from qtool.core.graph import torch_ops

aten = torch.ops.aten
Write = Callable[[Writer, fx.Node], Value | Stored]


def _unary(kind: str, version: int = 1, **options: Any) -> Write:
    def write(w: Writer, node: fx.Node) -> Value:
        x = w.whole(node.args[0])
        values = {k: v(node) if callable(v) else v for k, v in options.items()}
        return w.emit(kind, [x], w.new(name(node), node, x.order), version, **values)

    return write


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
    return w.emit("MUL", [w.in_order(value, value.order), number], result)


def _swapped(kind: str) -> Write:
    """The first operand is subtracted from the second (rsub)."""

    def write(w: Writer, node: fx.Node) -> Value:
        a, b = (_operand(w, node, n) for n in node.args[:2])
        return _apply(w, node, kind, [b, a])

    return write


def _clamp(w: Writer, node: fx.Node) -> Value:
    low, high = G.argument(node, 1, "min"), G.argument(node, 2, "max")
    x: Value = w.whole(node.args[0])
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
    x = w.whole(node.args[0])
    three, sixth = (w.stored(Stored("number", torch.tensor(v)), ()) for v in (3.0, 1 / 6))
    moved = w.new(f"{name(node)}.moved", node, x.order)
    w.emit("ADD", [x, three], moved, fused_activation_function=3)
    return w.emit("MUL", [moved, sixth], w.new(name(node), node, x.order))


def _silu(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
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
        x = w.whole(node.args[0])
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


def _vector_norm(w: Writer, node: fx.Node) -> Value:
    """Write the root of a sum of squares."""
    if float(G.argument(node, 1, "ord", 2)) != 2:
        raise ExportError(f"{name(node)}: norms but the Euclidean one cannot be written to TFLite")
    x = w.whole(node.args[0])
    axes = G.argument(node, 2, "dim")
    axes = list(range(len(x.sizes))) if axes is None else axes
    axes = [axes] if isinstance(axes, int) else list(axes)
    squares = w.emit("MUL", [x, x], w.new(f"{name(node)}.squares", x))
    keep = bool(G.argument(node, 3, "keepdim", False))
    total = _reduced(w, node, "SUM", squares, axes, keep)
    return w.emit("SQRT", [total], w.new(f"{name(node)}.root", total))


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
    x = w.in_order(x, x.order)
    result = w.new(name(node), node, x.order)
    types = {"in_data_type": ELEMENT_TYPES[x.dtype], "out_data_type": ELEMENT_TYPES[result.dtype]}
    return w.emit("CAST", [x], result, **types)


def _embedding(w: Writer, node: fx.Node) -> Value:
    """Write GATHER of rows; those of codes are cast and multiplied by their scales."""
    at = [0, 1] if node.target in (torch_ops.embedding, torch_ops.embedding_codes) else [1, 0]
    ids, table = (w.argument(node.args[i]) for i in at)
    assert isinstance(ids, Value)
    assert isinstance(table, Stored)
    ids = w.in_order(ids, identity(len(ids.sizes)))
    if node.target is not torch_ops.embedding_codes:
        rows = w.stored(Stored(table.name, table.real().detach()), identity(2))
        return w.emit("GATHER", [rows, ids], w.new(name(node), node), 2, axis=0)
    scale = w.argument(node.args[2])
    assert isinstance(scale, Stored)
    whole = w.new(name(node), node)
    column = Stored(scale.name, scale.data.detach()[:, None])
    codes = w.add(f"{name(node)}.rows", whole.sizes, whole.dynamic, whole.order, dtype="int8")
    factor = w.add(f"{name(node)}.scale", (*whole.sizes[:-1], 1), whole.dynamic, whole.order)
    real = w.add(f"{name(node)}.cast", whole.sizes, whole.dynamic, whole.order)
    stored = w.stored(Stored(table.name, table.data.detach()), identity(2))
    w.emit("GATHER", [stored, ids], codes, 2, axis=0)
    w.emit("GATHER", [w.stored(column, identity(2)), ids], factor, 2, axis=0)
    w.emit("CAST", [codes], real, in_data_type=9, out_data_type=0)
    return w.emit("MUL", [real, factor], whole)


def _whole_unary(kind: str) -> Write:
    """An operator on values that are no floats."""

    def write(w: Writer, node: fx.Node) -> Value:
        x = w.computed(node.args[0])
        x = w.in_order(x, x.order)
        return w.emit(kind, [x], w.new(name(node), node, x.order))

    return write


def _index(w: Writer, node: fx.Node) -> Value:
    """Write x[samples, columns] of a tensor [N, C] as GATHER; masks of attention have this form.

    The samples have to be all of the batch, in order, and the columns constant.
    """
    indices: Any = node.args[1]
    x = w.in_order(w.computed(node.args[0]), identity(G.rank(node.args[0])))  # type: ignore[arg-type]  # a node
    chosen = [None if i is None else w.argument(i) for i in indices]
    fits = len(chosen) == len(x.sizes) == 2
    rows, columns = chosen if fits else (None, None)
    if (
        not isinstance(rows, Stored)
        or not isinstance(columns, Stored)
        or not rows.follows_batch
        or rows.data.dim() != G.rank(node)
        or G.shape(node)[0] != G.shape(node.args[0])[0]  # type: ignore[arg-type]  # a node
    ):
        raise ExportError(
            f"{name(node)}: elements that are selected by tensors cannot be written to TFLite; "
            "select them along one axis"
        )
    places = columns.data.flatten().tolist()
    sizes = (x.sizes[0], len(places))
    flat = w.add(f"{name(node)}.columns", sizes, x.dynamic, x.order, dtype=x.dtype)
    w.emit("GATHER", [x, w.integers(places)], flat, 2, axis=1)
    result = w.new(name(node), node)
    w.reshape(flat, result)
    return result


def _bilinear(w: Writer, node: fx.Node) -> Value:
    x = w.in_order(w.floats(node.args[0]), channels_last(4))
    result = w.new(name(node), node, channels_last(4))
    corners = bool(node.args[2])
    size = w.integers(result.sizes[2:])
    options = {"align_corners": corners, "half_pixel_centers": not corners}
    return w.emit("RESIZE_BILINEAR", [x, size], result, 3, **options)


def _prelu(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
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
        x = w.whole(node.args[0])
        return w.emit("MUL", [x, x], w.new(name(node), node, x.order))
    return _apply(w, node, "POW", [_operand(w, node, n) for n in node.args[:2]])


def _number(w: Writer, value: float) -> Value:
    return w.stored(Stored("number", torch.tensor(value)), ())


def _elu(w: Writer, node: fx.Node) -> Value:
    """max(x, 0) + alpha * (exp(min(x, 0)) - 1), since reference kernels have no ELU."""
    x = w.whole(node.args[0])
    alpha, scale, inner = (
        float(G.argument(node, i, n, 1.0))
        for i, n in ((1, "alpha"), (2, "scale"), (3, "input_scale"))
    )

    def part(kind: str, a: Value, b: Value | None, title: str) -> Value:
        operands = [a] if b is None else [a, b]
        return w.emit(kind, operands, w.new(f"{name(node)}.{title}", node, x.order))

    zero = _number(w, 0.0)
    positive = part("MAXIMUM", x, zero, "positive")
    negative = part("MINIMUM", x, zero, "negative")
    if inner != 1.0:
        negative = part("MUL", negative, _number(w, inner), "inner")
    raised = part("SUB", part("EXP", negative, None, "exp"), _number(w, 1.0), "expm1")
    if alpha != 1.0:
        raised = part("MUL", raised, _number(w, alpha), "alpha")
    result = w.emit("ADD", [positive, raised], w.new(name(node), node, x.order))
    return result if scale == 1.0 else part("MUL", result, _number(w, scale), "scale")


def _ceil(w: Writer, node: fx.Node) -> Value:
    """-floor(-x), since reference kernels have no CEIL."""
    x = w.whole(node.args[0])
    for i, kind in enumerate(("NEG", "FLOOR", "NEG")):
        x = w.emit(kind, [x], w.new(f"{name(node)}.{i}", node, x.order))
    return x


def _expm1(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    raised = w.emit("EXP", [x], w.new(f"{name(node)}.exp", node, x.order))
    return w.emit("SUB", [raised, _number(w, 1.0)], w.new(name(node), node, x.order))


def _log1p(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    moved = w.emit("ADD", [x, _number(w, 1.0)], w.new(f"{name(node)}.moved", node, x.order))
    return w.emit("LOG", [moved], w.new(name(node), node, x.order))


def _reciprocal(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    return w.emit("DIV", [_number(w, 1.0), x], w.new(name(node), node, x.order))


def _square(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    return w.emit("MUL", [x, x], w.new(name(node), node, x.order))


def _as_is(w: Writer, node: fx.Node) -> Value:
    return w.floats(node.args[0])


def _full_like(w: Writer, node: fx.Node) -> Value:
    """Write ZEROS_LIKE, of the result's type, and the number added."""
    x = w.in_order(w.floats(node.args[0]), identity(G.rank(node)))
    number: Any = G.argument(node, 1, "fill_value", 0) if "full" in str(node.target) else 0
    zeros = w.add(f"{name(node)}.zeros", x.sizes, x.dynamic, x.order, dtype=x.dtype)
    result = w.new(name(node), node)
    if x.dtype == result.dtype and not number:
        return w.emit("ZEROS_LIKE", [x], result)
    w.emit("ZEROS_LIKE", [x], zeros)
    if x.dtype != result.dtype:
        types = {
            "in_data_type": ELEMENT_TYPES[x.dtype],
            "out_data_type": ELEMENT_TYPES[result.dtype],
        }
        cast = result if not number else w.new(f"{name(node)}.cast", node)
        zeros = w.emit("CAST", [zeros], cast, **types)
    if not number:
        return zeros
    stored = w.stored(Stored("number", torch.tensor(number, dtype=G.value(node).dtype)), ())
    return w.emit("ADD", [zeros, stored], result)


def _cumsum(w: Writer, node: fx.Node) -> Value:
    x = w.whole(node.args[0])
    axis = w.integers([x.axis(int(node.args[1]))])  # type: ignore[arg-type]  # a number
    axis = w.builder.constant("axis", np.array(w.builder.tensors[axis].data, np.int32).reshape(()))
    return w.emit("CUMSUM", [x, axis], w.new(name(node), node, x.order))


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
    aten.ceil.default: _ceil,
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
    aten.elu.default: _elu,
    aten.expm1.default: _expm1,
    aten.log1p.default: _log1p,
    aten.reciprocal.default: _reciprocal,
    aten.square.default: _square,
    aten.cumsum.default: _cumsum,
    aten.full_like.default: _full_like,
    aten.zeros_like.default: _full_like,
    aten.alias.default: _as_is,
    aten.clone.default: _as_is,
    aten.pad.default: float_layers.border_pad,
    aten.sum.default: _reduce("SUM"),
    aten.mean.default: _reduce("MEAN"),
    aten._softmax.default: _softmax,
    aten.prelu.default: _prelu,
    aten.softmax.int: _softmax,
    aten.log_softmax.int: _log_softmax,
    aten.mean.dim: _reduce("MEAN"),
    aten.sum.dim_IntList: _reduce("SUM"),
    aten.linalg_vector_norm.default: _vector_norm,
    aten.amax.default: _reduce("REDUCE_MAX"),
    aten.amin.default: _reduce("REDUCE_MIN"),
    aten.argmax.default: _arg_max("ARG_MAX"),
    aten.argmin.default: _arg_max("ARG_MIN"),
    aten.layer_norm.default: float_norms.layer_norm,
    aten.rms_norm.default: float_norms.rms_norm,
    aten.group_norm.default: float_norms.group_norm,
    aten.scaled_dot_product_attention.default: float_norms.attention,
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
    torch_ops.conv: float_layers.conv,
    torch_ops.conv_transpose: float_layers.conv_transpose,
    torch_ops.average_pool: float_layers.average_pool,
    torch_ops.global_average_pool: float_layers.global_average_pool,
    aten.linear.default: float_layers.linear,
    torch_ops.gemm: float_layers.linear,
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
    aten.index.Tensor: _index,
    aten.__and__.Tensor: _binary("LOGICAL_AND"),
    aten.__or__.Tensor: _binary("LOGICAL_OR"),
    aten.bitwise_and.Tensor: _binary("LOGICAL_AND"),
    aten.bitwise_or.Tensor: _binary("LOGICAL_OR"),
    aten.bitwise_not.default: _whole_unary("LOGICAL_NOT"),
    aten.logical_and.default: _binary("LOGICAL_AND"),
    aten.logical_or.default: _binary("LOGICAL_OR"),
    aten.logical_not.default: _whole_unary("LOGICAL_NOT"),
    aten.batch_norm.default: float_norms.batch_norm,
}
"""Torch operator -> writer of its form in float."""
