"""Operators that stay in float, between DEQUANTIZE and QUANTIZE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.node import Argument, Target

from qtool.core import graph as G
from qtool.core.errors import ExportError
from qtool.core.graph import torch_ops
from qtool.core.ops import row_named
from qtool.plugins.tflite.export import (
    elementwise,
    float_functions,
    float_norms,
    layers,
    moves,
)
from qtool.plugins.tflite.export.elementwise import aligned, equal, last_axis
from qtool.plugins.tflite.export.layers import name
from qtool.plugins.tflite.export.linear import dynamic_linear, linear
from qtool.plugins.tflite.export.values import PIXELS, Stored, Value, channels_last, identity
from qtool.plugins.tflite.export.writer import DTYPES, Writer
from qtool.plugins.tflite.file.schema import ELEMENT_TYPES

aten = torch.ops.aten
Write = Callable[[Writer, fx.Node], Value | Stored]


def _binary(kind: str) -> Write:
    def write(writer: Writer, node: fx.Node) -> Value:
        a, b = (_operand(writer, node, n) for n in node.args[:2])
        factor: Any = node.kwargs.get("alpha", 1)
        if factor != 1:
            b = _times(writer, node, b, float(factor))
        return _apply(writer, node, kind, [a, b])

    return write


def _apply(writer: Writer, node: fx.Node, kind: str, operands: Sequence[Value | Stored]) -> Value:
    values, order = aligned(writer, operands, G.rank(node))
    return writer.emit(kind, values, writer.tensor_like(name(node), node, order))


def _operand(writer: Writer, node: fx.Node, argument: Argument) -> Value | Stored:
    """Return an operand in float, or of the common type of both; a constant stays stored."""
    types = [G.value(n).dtype for n in node.all_input_nodes if G.is_tensor(n)]
    real = next((t for t in (G.value(node).dtype, *types) if t.is_floating_point), None)
    return _of_type(writer, argument, real or next(iter(types), None))


def _of_type(writer: Writer, argument: Any, wanted: torch.dtype | None) -> Value | Stored:
    """Return an argument of a type; None: of its own. TFLite promotes no operand itself."""
    value = writer.argument(argument)
    if isinstance(value, Stored):
        return Stored(value.name, value.real().detach().to(wanted))
    x = writer.floats(argument) if value.params is not None else value
    return (
        x
        if wanted is None
        else _converted(writer, x, f"{name(argument)}.{DTYPES.get(wanted)}", wanted)
    )


def _converted(writer: Writer, x: Value, title: str, wanted: torch.dtype) -> Value:
    """Return a tensor of another type, of this name."""
    dtype = DTYPES.get(wanted, x.dtype)
    if x.dtype == dtype:
        return x
    x = writer.in_order(x, x.order)
    result = writer.tensor(title, x.sizes, x.dynamic, x.order, dtype=dtype)
    return _cast_into(writer, x, result)


def _times(writer: Writer, node: fx.Node, value: Value | Stored, factor: float) -> Value | Stored:
    if isinstance(value, Stored):
        return replace(value, data=value.data * factor)
    number = writer.scalar("factor", factor)
    result = writer.tensor_like(f"{name(node)}.factor", value)
    return writer.emit("MUL", [writer.in_order(value, value.order), number], result)


def _subtracted_from(writer: Writer, node: fx.Node) -> Value:
    """Write SUB of the first operand from the second."""
    a, b = (_operand(writer, node, n) for n in node.args[:2])
    return _apply(writer, node, "SUB", [b, a])


def _log_softmax(writer: Writer, node: fx.Node) -> Value:
    x = last_axis(writer, writer.floats(node.args[0]), G.integer(node, 1))
    return writer.emit("LOG_SOFTMAX", [x], writer.tensor_like(name(node), node, x.order))


def _reduce(kind: str) -> Write:
    def write(writer: Writer, node: fx.Node) -> Value:
        x = writer.in_graph_order(node.args[0])
        x = _converted(writer, x, f"{name(node)}.numbers", G.value(node).dtype)  # of booleans
        return moves.reduced(writer, node, kind, x, 1)

    return write


def _vector_norm(writer: Writer, node: fx.Node) -> Value:
    """Write the root of a sum of squares."""
    if float(G.argument(node, 1, "ord", 2)) != 2:
        raise ExportError(f"{name(node)}: norms but the Euclidean one cannot be written to TFLite")
    x = writer.in_graph_order(node.args[0])
    squares = writer.emit("MUL", [x, x], writer.tensor_like(f"{name(node)}.squares", x))
    total = moves.reduced(writer, node, "SUM", squares, 2)
    return writer.emit("SQRT", [total], writer.tensor_like(f"{name(node)}.root", total))


def _where(writer: Writer, node: fx.Node) -> Value:
    condition = writer.argument(node.args[0])
    branches = [_of_type(writer, n, G.value(node).dtype) for n in node.args[1:3]]
    return _apply(writer, node, "SELECT_V2", [condition, *branches])


def _cast(writer: Writer, node: fx.Node) -> Value | Stored:
    value = writer.argument(node.args[0])
    wanted = G.value(node).dtype
    if isinstance(value, Stored):
        return Stored(value.name, value.real().to(wanted))
    if value.params is not None and equal(value.params, PIXELS):
        return value  # QUANTIZE reads bytes
    x = writer.floats(node.args[0]) if value.params is not None else value
    if x.dtype == DTYPES.get(wanted):
        return x
    x = writer.in_order(x, x.order)
    return _cast_into(writer, x, writer.tensor_like(name(node), node, x.order))


def _cast_into(writer: Writer, x: Value, result: Value) -> Value:
    types = {"in_data_type": ELEMENT_TYPES[x.dtype], "out_data_type": ELEMENT_TYPES[result.dtype]}
    return writer.emit("CAST", [x], result, **types)


def _bilinear(writer: Writer, node: fx.Node) -> Value:
    x = writer.in_order(writer.floats(node.args[0]), channels_last(4))
    result = writer.tensor_like(name(node), node, channels_last(4))
    corners = bool(node.args[2])
    size = writer.integers(result.sizes[2:])
    options = {"align_corners": corners, "half_pixel_centers": not corners}
    return writer.emit("RESIZE_BILINEAR", [x, size], result, 3, **options)


def _power(writer: Writer, node: fx.Node) -> Value:
    exponent = node.args[1]
    if exponent == 2:
        x = writer.in_graph_order(node.args[0])
        return writer.emit("MUL", [x, x], writer.tensor_like(name(node), node, x.order))
    return _apply(writer, node, "POW", [_operand(writer, node, n) for n in node.args[:2]])


def _as_is(writer: Writer, node: fx.Node) -> Value:
    return writer.floats(node.args[0])


def _full_like(writer: Writer, node: fx.Node) -> Value:
    """Write ZEROS_LIKE, of the result's type, and the number added."""
    x = writer.in_order(writer.floats(node.args[0]), identity(G.rank(node)))
    number: Any = G.argument(node, 1, "fill_value", 0) if "full" in str(node.target) else 0
    zeros = writer.tensor(f"{name(node)}.zeros", x.sizes, x.dynamic, x.order, dtype=x.dtype)
    result = writer.tensor_like(name(node), node)
    if x.dtype == result.dtype and not number:
        return writer.emit("ZEROS_LIKE", [x], result)
    writer.emit("ZEROS_LIKE", [x], zeros)
    if x.dtype != result.dtype:
        cast = result if not number else writer.tensor_like(f"{name(node)}.cast", node)
        zeros = _cast_into(writer, zeros, cast)
    if not number:
        return zeros
    added = writer.scalar("number", number, G.value(node).dtype)
    return writer.emit("ADD", [zeros, added], result)


def _cumsum(writer: Writer, node: fx.Node) -> Value:
    x = writer.in_graph_order(node.args[0])
    axis = writer.integers([x.axis(G.integer(node, 1))])
    axis = writer.builder.constant(
        "axis", np.array(writer.builder.tensors[axis].data, np.int32).reshape(())
    )
    return writer.emit("CUMSUM", [x, axis], writer.tensor_like(name(node), node, x.order))


_OF_TENSOR_OR_NUMBER: Mapping[Any, str] = {
    aten.add: "ADD",
    aten.sub: "SUB",
    aten.mul: "MUL",
    aten.div: "DIV",
    aten.eq: "EQUAL",
    aten.ne: "NOT_EQUAL",
    aten.gt: "GREATER",
    aten.ge: "GREATER_EQUAL",
    aten.lt: "LESS",
    aten.le: "LESS_EQUAL",
}
"""Torch operator -> the TFLite operator of its forms with a tensor and with a number."""

_UNARY = ["ABS", "COS", "EXP", "FLOOR", "LOG", "NEG", "RELU", "RSQRT", "SIN", "SQRT"]
"""TFLite operators of one input that have the name of torch's."""

ON_CODES_TOO: Mapping[str, Any] = {
    "average_pool": layers.average_pool,
    "conv": layers.conv,
    "conv_transpose": layers.conv_transpose,
    "gelu": elementwise.gelu,
    "global_average_pool": layers.global_average_pool,
    "hard_swish": elementwise.hard_swish,
    "leaky_relu": elementwise.leaky_relu,
    "linear": linear,
    "matmul": elementwise.matmul,
    "sigmoid": elementwise.logistic,
    "silu": elementwise.silu,
    "softmax": elementwise.softmax,
    "tanh": elementwise.tanh,
}
"""Operator key -> writer of both forms: on codes, and without parameters of the result in float."""

FLOAT: Mapping[Target, Write] = {
    **{each: write for key, write in ON_CODES_TOO.items() for each in row_named(key).targets},
    **{each.Tensor: _binary(kind) for each, kind in _OF_TENSOR_OR_NUMBER.items()},
    **{each.Scalar: _binary(kind) for each, kind in _OF_TENSOR_OR_NUMBER.items()},
    aten.rsub.Scalar: _subtracted_from,
    torch_ops.rescale: _binary("MUL"),
    aten.maximum.default: _binary("MAXIMUM"),
    aten.minimum.default: _binary("MINIMUM"),
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: _power,
    **{getattr(aten, kind.lower()).default: elementwise.unary(kind) for kind in _UNARY},
    aten.ceil.default: float_functions.ceil,
    aten.round.default: float_functions.round_to_even,
    aten.clamp.default: float_functions.clamp,
    aten.hardsigmoid.default: float_functions.hard_sigmoid,
    aten.elu.default: float_functions.elu,
    aten.expm1.default: float_functions.expm1,
    aten.log1p.default: float_functions.log1p,
    aten.reciprocal.default: float_functions.reciprocal,
    aten.square.default: float_functions.square,
    aten.cumsum.default: _cumsum,
    aten.full_like.default: _full_like,
    aten.zeros_like.default: _full_like,
    aten.alias.default: _as_is,
    aten.clone.default: _as_is,
    aten.pad.default: float_functions.border_pad,
    aten.sum.default: _reduce("SUM"),
    aten.mean.default: _reduce("MEAN"),
    aten._softmax.default: elementwise.softmax,
    aten.prelu.default: float_functions.prelu,
    aten.log_softmax.int: _log_softmax,
    aten.mean.dim: _reduce("MEAN"),
    aten.sum.dim_IntList: _reduce("SUM"),
    aten.linalg_vector_norm.default: _vector_norm,
    aten.argmax.default: float_functions.arg_max("ARG_MAX"),
    aten.argmin.default: float_functions.arg_max("ARG_MIN"),
    aten.layer_norm.default: float_norms.layer_norm,
    aten.rms_norm.default: float_norms.rms_norm,
    aten.group_norm.default: float_norms.group_norm,
    aten.scaled_dot_product_attention.default: float_norms.attention,
    aten.where.self: _where,
    aten.where.ScalarOther: _where,
    aten.where.ScalarSelf: _where,
    aten._to_copy.default: _cast,
    aten.to.dtype: _cast,
    aten.embedding.default: float_functions.embedding,
    torch_ops.embedding: float_functions.embedding,
    torch_ops.embedding_codes: float_functions.embedding,
    aten.upsample_bilinear2d.vec: _bilinear,
    aten.copy.default: moves.copy,
    aten.slice_scatter.default: moves.slice_scatter,
    torch_ops.dynamic_linear: dynamic_linear,
    torch_ops.gemm: linear,
    aten.index.Tensor: float_functions.index,
    **dict.fromkeys((aten.__and__.Tensor, aten.bitwise_and.Tensor), _binary("LOGICAL_AND")),
    **dict.fromkeys((aten.__or__.Tensor, aten.bitwise_or.Tensor), _binary("LOGICAL_OR")),
    aten.logical_and.default: _binary("LOGICAL_AND"),
    aten.logical_or.default: _binary("LOGICAL_OR"),
    aten.bitwise_not.default: elementwise.unary("LOGICAL_NOT"),
    aten.logical_not.default: elementwise.unary("LOGICAL_NOT"),
    aten.batch_norm.default: float_norms.batch_norm,
}
"""Torch operator -> writer of its form in float."""
