"""Layers and pools in float, and padding with elements of the image."""

from __future__ import annotations

import numpy as np
import torch
from torch import fx

from qtool.backends.tflite.conversion_record import StoredPoint
from qtool.backends.tflite.export import layers
from qtool.backends.tflite.export.graph_builder import quantization
from qtool.backends.tflite.export.layers import name
from qtool.backends.tflite.export.linear import linear as linear_layer
from qtool.backends.tflite.export.values import Stored, Value, identity
from qtool.backends.tflite.export.writer import Writer
from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.errors import ExportError
from qtool.core.graph import torch_ops
from qtool.core.types import INT8, QuantParams


def conv(w: Writer, node: fx.Node) -> Value:
    _require_plain_weight(w, node)
    return layers.conv(w, node, None, (None, None))


def conv_transpose(w: Writer, node: fx.Node) -> Value:
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


def linear(w: Writer, node: fx.Node) -> Value:
    """Write FULLY_CONNECTED in float; the weight of a Gemm is [in, out]."""
    _require_plain_weight(w, node)
    if node.target is torch_ops.gemm:
        weight = node.args[1]
        assert isinstance(weight, fx.Node)
        stored = w.argument(weight)
        assert isinstance(stored, Stored)
        w.values[weight] = Stored(f"{stored.name}.transposed", stored.data.t())
        result = linear_layer(w, node, None, (None, None))
        w.values[weight] = stored
        return result
    return linear_layer(w, node, None, (None, None))


def dynamic_linear(w: Writer, node: fx.Node) -> Value:
    """Write FULLY_CONNECTED on floats with int8 weights, which quantizes each row of its input."""
    codes, scale, bias = (w.argument(a) if a is not None else None for a in node.args[1:4])
    assert isinstance(codes, Stored)
    assert isinstance(scale, Stored)
    channels = scale.data.reshape(-1)
    params = QuantParams(INT8, channels, torch.zeros_like(channels, dtype=torch.int64), 0)
    x = w.whole(node.args[0])
    x = w.in_order(x, identity(len(x.sizes)))
    array = np.ascontiguousarray(codes.data.t().numpy())
    index = w.builder.constant(codes.name, array, quantization(params, 0))
    inputs: list[Value | int] = [x, index]
    point = value_names.dequantize(value_names.point_of_codes(codes.name) or codes.name)
    shape = tuple(codes.data.shape)
    w.dynamic_weights[point] = StoredPoint(index, 0, (1, 0), shape)
    if isinstance(bias, Stored):
        inputs.append(w.builder.constant(bias.name, bias.real().detach().numpy()))
    options = {"keep_num_dims": len(x.sizes) > 2, "asymmetric_quantize_inputs": True}
    result = w.new(name(node), node)
    return w.emit("FULLY_CONNECTED", inputs, result, 12, fused_activation_function=0, **options)


def average_pool(w: Writer, node: fx.Node) -> Value:
    w.values[node.args[0]] = w.floats(node.args[0])  # type: ignore[index]  # a node
    return layers.average_pool(w, node, None, (None, None))


def global_average_pool(w: Writer, node: fx.Node) -> Value:
    return layers.global_average_pool(w, node, None, (None, None))


def border_pad(w: Writer, node: fx.Node) -> Value:
    """Write padding by reflection as MIRROR_PAD; by other elements as a GATHER for each axis."""
    mode, widths = G.argument(node, 2, "mode", "constant"), node.args[1]
    assert isinstance(widths, list | tuple)
    x = w.whole(node.args[0])
    rank = len(x.sizes)
    around = [(0, 0)] * rank
    for i in range(len(widths) // 2):
        around[rank - 1 - i] = int(w.number(widths[2 * i])), int(w.number(widths[2 * i + 1]))
    if mode == "reflect" and min(min(pair) for pair in around) >= 0:
        table = w.builder.constant("pads", np.array([around[i] for i in x.order], np.int32))
        return w.emit("MIRROR_PAD", [x, table], w.new(name(node), node, x.order), mode=0)
    for axis, (before, after) in enumerate(around):
        if before or after:
            x = _gathered(w, node, x, axis, _places(x.sizes[axis], before, after, str(mode)))
    return x


def _places(size: int, before: int, after: int, mode: str) -> list[int]:
    """Return the place of each element of a padded axis in the axis itself."""
    places = np.arange(-before, size + after)
    if mode == "circular":
        return [int(p) for p in places % size]
    if mode == "reflect":
        turn = np.abs(places) % max(2 * (size - 1), 1)
        return [int(p) for p in np.minimum(turn, 2 * (size - 1) - turn)]
    return [int(p) for p in places.clip(0, size - 1)]


def _gathered(w: Writer, node: fx.Node, x: Value, axis: int, places: list[int]) -> Value:
    if x.dynamic[axis]:
        raise ExportError(f"{name(node)}: padding a dynamic batch cannot be written to TFLite")
    sizes = [len(places) if i == axis else s for i, s in enumerate(x.sizes)]
    result = w.add(f"{name(node)}.{axis}", sizes, x.dynamic, x.order)
    return w.emit("GATHER", [x, w.integers(places)], result, 2, axis=x.axis(axis))
