"""Sums, products, activation functions and softmax on codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx

from qtool.backends.kernels.params import NO_BOUNDS
from qtool.core import graph as G
from qtool.core.quant_params import QuantParams
from qtool.core.types import Bounds
from qtool.plugins.tflite.export.graph_builder import quantization
from qtool.plugins.tflite.export.layers import name
from qtool.plugins.tflite.export.moves import concat as write_concat
from qtool.plugins.tflite.export.values import Codes, Order, Stored, Value, identity
from qtool.plugins.tflite.export.writer import Writer, activation
from qtool.plugins.tflite.kernels.lookup_tables import logistic_output


def aligned(
    writer: Writer, arguments: Sequence[Value | Stored], rank: int
) -> tuple[list[Value], Order]:
    """Return operands of an elementwise operator in one layout, and that layout.

    The layout is that of the largest operand of the result's rank. Others of a lower rank get axes
    of size 1 in front.
    """
    values = [a for a in arguments if isinstance(a, Value)]
    full = [v for v in values if len(v.sizes) == rank and not v.columns]
    order = max(full, key=lambda v: int(np.prod(v.spread))).order if full else identity(rank)
    return [_lifted(writer, a, rank, order) for a in arguments], order


def _lifted(writer: Writer, argument: Value | Stored, rank: int, order: Order) -> Value:
    if isinstance(argument, Stored):
        missing = rank - argument.data.dim()
        if not argument.data.dim():  # a number broadcasts as it is
            return writer.constant(argument, ())
        data = argument.data.reshape((1,) * missing + tuple(argument.data.shape))
        return writer.constant(replace(argument, data=data), order)
    missing = rank - len(argument.sizes)
    if missing <= 0:
        return writer.in_order(argument, order) if rank else argument
    if not argument.sizes:
        return argument
    title = f"{writer.builder.tensors[argument.index].name}.rank"
    plain = writer.in_order(argument, identity(len(argument.sizes)))
    return writer.in_order(writer.with_rank(plain, rank, title), order)


def binary(kind: str) -> Any:
    """Return the writer of ADD, SUB or MUL on codes."""

    def write(writer: Writer, node: fx.Node, out: QuantParams, bounds: Bounds) -> Value:
        (a, b), order = aligned(writer, [writer.argument(n) for n in node.args[:2]], G.rank(node))
        result = writer.tensor_like(name(node), node, order, out)
        options: dict[str, Any] = {"fused_activation_function": activation(bounds, out)}
        if kind != "MUL":
            options["pot_scale_int16"] = False  # any scale of int16 codes
        return writer.emit(kind, [a, b], result, 2, **options)

    return write


def unary(kind: str, version: int = 1, **options: Any) -> Any:
    """Return the writer of an operator of one operand, on codes or in float.

    Args:
        kind: the operator.
        version: version of the operator on codes.
        options: options of the operator; one may be a function of the call.
    """

    def write(
        writer: Writer, node: fx.Node, out: QuantParams | None = None, bounds: Bounds = NO_BOUNDS
    ) -> Value:
        x = writer.in_graph_order(node.args[0], out)
        result = writer.tensor_like(name(node), node, x.order, out)
        values = {k: v(node) if callable(v) else v for k, v in options.items()}
        return writer.emit(kind, [x], result, 1 if out is None else version, **values)

    return write


gelu = unary("GELU", 2, approximate=lambda n: G.argument(n, 1, "approximate", "none") == "tanh")
leaky_relu = unary("LEAKY_RELU", 2, alpha=lambda n: float(G.argument(n, 1, "negative_slope", 0.01)))
logistic = unary("LOGISTIC", 2)
hard_swish = unary("HARD_SWISH")
tanh = unary("TANH", 2)


def silu(writer: Writer, node: fx.Node, out: Codes = None, bounds: Bounds = NO_BOUNDS) -> Value:
    """Write LOGISTIC, on codes with the only parameters that it may have, and MUL."""
    x = writer.in_graph_order(node.args[0], out)
    gate = None if out is None or x.params is None else logistic_output(x.params.qtype)
    version = 1 if out is None else 2
    title = f"{name(node)}.gate"
    sigmoid = writer.emit("LOGISTIC", [x], writer.tensor_like(title, node, x.order, gate), version)
    return writer.emit(
        "MUL", [x, sigmoid], writer.tensor_like(name(node), node, x.order, out), version
    )


def softmax(writer: Writer, node: fx.Node, out: Codes = None, bounds: Bounds = NO_BOUNDS) -> Value:
    x = last_axis(writer, writer.read_operand(node.args[0], out), G.integer(node, 1))
    result = writer.tensor_like(name(node), node, x.order, out)
    return writer.emit("SOFTMAX", [x], result, 1 if out is None else 2, beta=1.0)


def last_axis(writer: Writer, x: Value, axis: int) -> Value:
    """Return a value in a layout whose last axis is the given one of the graph."""
    axis = axis % len(x.sizes)
    order = tuple(i for i in x.order if i != axis)
    return writer.in_order(x, (*order, axis))


def prelu(writer: Writer, node: fx.Node, out: QuantParams, bounds: Bounds) -> Value:
    """Write PRELU; its slopes are codes of one scale, without the batch and broadcast."""
    x = writer.as_tensor(node.args[0])
    x = writer.in_order(x, x.order)
    slope = writer.argument(node.args[1])
    assert isinstance(slope, Stored)
    assert x.params is not None
    result = writer.tensor_like(name(node), node, x.order, out)
    real = slope.real().detach().float().reshape(-1)
    largest = float(real.abs().max()) or 1.0
    scale = torch.tensor(largest / x.params.qtype.qmax, dtype=torch.float32)
    params = QuantParams(x.params.qtype, scale, torch.tensor(0))
    shape = [1] * len(x.sizes)
    shape[1 if len(x.sizes) > 1 else 0] = len(real)
    codes = params.quantize(real).reshape(shape).permute(*x.order)
    data = np.ascontiguousarray(codes.numpy())[0]
    index = writer.builder.constant(f"{slope.name}.codes", data, quantization(params))
    return writer.emit("PRELU", [x, index], result)


def concat(writer: Writer, node: fx.Node, out: QuantParams, bounds: Bounds) -> Value:
    """Write CONCATENATION, with a QUANTIZE in front of inputs of other parameters."""
    parts = [
        requantized(writer, writer.as_tensor(n), out, f"{name(node)}.{i}.requantize")
        for i, n in enumerate(G.sources(node))
    ]
    result = write_concat(writer, node, parts, int(G.argument(node, 1, "dim", 0)))
    return replace(result, params=out)


_ROUNDS_TWICE = 0.5
"""Ratio of scales below which QUANTIZE rounds to whole numbers, shifts, and rounds again."""


def requantized(writer: Writer, x: Value, out: QuantParams, title: str) -> Value:
    """Return codes with other parameters: the same where they are equal.

    QUANTIZE rounds twice where the scale grows to more than double, by up to 0.75 codes and to one
    side: half of all values are halfway the second time. ADD of zero has 20 more bits in between.
    """
    assert x.params is not None
    if equal(x.params, out):
        return x
    new = replace(writer.tensor(title, x.sizes, x.dynamic, x.order, out), columns=x.columns)
    other = x.params.qtype.dtype != out.qtype.dtype  # ADD has one type
    if other or float(x.params.scale) / float(out.scale) >= _ROUNDS_TWICE:
        return writer.emit("QUANTIZE", [x], new, 2)
    code = np.array([int(x.params.zero_point)], x.params.qtype.numpy_dtype)
    zero = writer.builder.constant("zero", code, quantization(x.params))
    return writer.emit("ADD", [x, zero], new, 2, fused_activation_function=0, pot_scale_int16=False)


def equal(a: QuantParams, b: QuantParams) -> bool:
    """Return whether codes of both mean the same."""
    same = a.qtype.dtype == b.qtype.dtype and a.scale.shape == b.scale.shape
    return same and bool((a.scale == b.scale).all()) and bool((a.zero_point == b.zero_point).all())


def matmul(writer: Writer, node: fx.Node, out: Codes = None, bounds: Bounds = NO_BOUNDS) -> Value:
    """Write BATCH_MATMUL; a transposed operand is read as it lies."""
    a, b = (writer.read_operand(n, out) for n in node.args[:2])
    return write_matmul(writer, node, a, b, out)


def write_matmul(
    writer: Writer, node: fx.Node, a: Value, b: Value, out: QuantParams | None
) -> Value:
    a, _ = product_operand(writer, a)
    b, transposed = product_operand(writer, b, may_be_transposed=True)
    result = writer.tensor_like(name(node), node, params=out)
    options = {"adj_x": False, "adj_y": transposed}
    return writer.emit("BATCH_MATMUL", [a, b], result, 1 if out is None else 2, **options)


def product_operand(
    writer: Writer, x: Value, may_be_transposed: bool = False
) -> tuple[Value, bool]:
    """Return an operand of a product as it is read, and whether its last axes are swapped."""
    rank = len(x.sizes)
    plain = identity(rank)
    swapped = (*plain[:-2], rank - 1, rank - 2)
    if may_be_transposed and x.order == swapped and not x.columns:
        return x, True
    return writer.in_order(x, plain), False
