"""Linear layers: one FULLY_CONNECTED; several with finer codes for the outputs of a model in float.

Several kernels on the same weights, each with a part of the range of the result, have as many times
the steps (planning/result_parts.py): codes beyond a part saturate at its ends, so that the parts
add up to the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.node import Target

from qtool.backends.kernels.params import NO_BOUNDS
from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.graph import torch_ops
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8, Array, Bounds
from qtool.planning.plan import QuantPlan
from qtool.planning.result_parts import fine_params, number_of_parts
from qtool.plugins.tflite.conversion_record import StoredPoint
from qtool.plugins.tflite.export.graph_builder import quantization
from qtool.plugins.tflite.export.layers import name, read_layer, store_bias, store_weight
from qtool.plugins.tflite.export.values import Codes, Parts, Stored, Value, identity
from qtool.plugins.tflite.export.writer import Writer, activation

_MAX_BIAS = 2.0**30
_UNITS_PER_CODE = 16  # at least, or the begin of a part is off: of layers whose weights are zero


def linear(writer: Writer, node: fx.Node, out: Codes = None, bounds: Bounds = NO_BOUNDS) -> Value:
    """Write FULLY_CONNECTED; the columns of a flattened image are moved in the weight.

    An output in float of a small layer is written in parts, see above: its value is float.
    """
    x, weight, bias = read_layer(writer, node, out)
    if node.target is torch_ops.gemm:  # its weight is [in, out]
        weight = replace(weight, name=f"{weight.name}.transposed", data=weight.data.t())
    columns = x.columns
    if not columns and x.order != identity(len(x.sizes)):
        x = writer.in_order(x, identity(len(x.sizes)))
    stored = store_weight(writer, weight, weight.data, (0, 1), columns=columns)
    index = store_bias(writer, bias, weight, x)
    if out is not None and out.qtype.bits <= 8 and node in writer.split_outputs:
        fine = fine_params(out, writer.split_outputs[node])
        parts = _biases(writer, index, weight, x, fine)
        if parts is not None:
            return _write_split(writer, node, [x, stored], parts, fine, weight)
    result = writer.tensor_like(name(node), node, params=out)
    return _emit(writer, [x, stored, index], result, weight, activation(bounds, out))


def _emit(
    writer: Writer, inputs: Sequence[Value | int], result: Value, weight: Stored, fused: int = 0
) -> Value:
    many = len(result.sizes) > 2
    per_channel = weight.params is not None and weight.params.axis is not None
    version = 1 if result.params is None else 12 if per_channel else 4
    options: dict[str, Any] = {"fused_activation_function": fused, "keep_num_dims": many}
    return writer.emit("FULLY_CONNECTED", inputs, result, max(version, 5 if many else 1), **options)


def find_split_outputs(module: fx.GraphModule, plan: QuantPlan) -> dict[fx.Node, int]:
    """Return the small linear layers whose quantized result is an output of the QDQ graph alone.

    Each with its number of parts, the more the smaller the layer.
    """
    layers = dict[fx.Node, int]()
    for output in G.output_nodes(module.graph):
        node = _source(output, torch_ops.dequantize, None)
        node = _source(node, torch_ops.quantize, output)
        count = 1 if node is None else number_of_parts(plan, node)
        if node is not None and count > 1:
            layers[node] = count
    return layers


def _source(node: fx.Node | None, target: Target, reader: fx.Node | None) -> fx.Node | None:
    """Return what a call of a target reads, if `reader` is the only one to read its result."""
    if node is None or node.target is not target or not isinstance(node.args[0], fx.Node):
        return None
    if reader is not None and list(node.users) != [reader]:
        return None
    return node.args[0]


def _biases(
    writer: Writer, index: int, weight: Stored, x: Value, fine: QuantParams
) -> list[Array] | None:
    """Return the bias of each part: it subtracts the begin of the part's range.

    None if one does not fit 32 bits, or the unit of a bias is coarse for the step of a code.
    """
    assert weight.params is not None
    assert x.params is not None
    stored = writer.builder.tensors[index].data
    assert stored is not None
    unit = (x.params.scale.double() * weight.params.scale.double()).reshape(-1).numpy()
    step, zero = float(fine.scale), int(fine.zero_point)
    if unit.max() > step / _UNITS_PER_CODE:
        return None
    begins = [(least - zero) * step for least in range(0, fine.qtype.qmax, INT8.levels)]
    biases = [stored - np.round(begin / unit) for begin in begins]
    if max(float(np.abs(b).max()) for b in biases) >= _MAX_BIAS:
        return None
    return [b.astype(np.int32) for b in biases]


def _write_split(
    writer: Writer,
    node: fx.Node,
    inputs: Sequence[Value | int],
    biases: Sequence[Array],
    fine: QuantParams,
    weight: Stored,
) -> Value:
    """Write a layer for each part of the range, and their sum in float."""
    x = inputs[0]
    assert isinstance(x, Value)
    assert x.params is not None
    assert weight.params is not None
    part_params = QuantParams(INT8, fine.scale, torch.tensor(INT8.qmin))
    scale = (x.params.scale * weight.params.scale).reshape(-1)
    bias_params = replace(weight.params, scale=scale, zero_point=torch.zeros_like(scale).long())
    title, total, tensors = name(node), None, list[int]()
    for number, bias in enumerate(biases):
        stored = writer.builder.constant(
            f"{title}.bias{number}", bias, quantization(bias_params, 0)
        )
        codes = writer.tensor_like(f"{title}.part{number}", node, params=part_params)
        real = writer.tensor_like(f"{title}.part{number}.dequantize", node)
        writer.emit("DEQUANTIZE", [_emit(writer, [*inputs, stored], codes, weight)], real, 2)
        tensors.append(codes.index)
        writer.layers |= {codes.index: title, real.index: title}
        total = real if total is None else _sum(writer, node, total, real, f"{title}.sum{number}")
    assert total is not None
    writer.parts[name(next(iter(node.users)))] = Parts(tuple(tensors), fine)
    least = -int(fine.zero_point) * float(fine.scale)
    begin = writer.builder.constant(f"{title}.least", np.array([least], np.float32))
    return _sum(writer, node, total, begin, title)


def _sum(writer: Writer, node: fx.Node, a: Value, b: Value | int, title: str) -> Value:
    result = writer.tensor_like(title, node)
    writer.layers[result.index] = name(node)
    return writer.emit("ADD", [a, b], result, fused_activation_function=0)


def dynamic_linear(writer: Writer, node: fx.Node) -> Value:
    """Write FULLY_CONNECTED on floats with int8 weights, which quantizes each row of its input."""
    codes, scale, bias = (writer.argument(a) if a is not None else None for a in node.args[1:4])
    assert isinstance(codes, Stored)
    assert isinstance(scale, Stored)
    channels = scale.data.reshape(-1)
    params = QuantParams(INT8, channels, torch.zeros_like(channels, dtype=torch.int64), 0)
    x = writer.in_graph_order(node.args[0])
    x = writer.in_order(x, identity(len(x.sizes)))
    array = np.ascontiguousarray(codes.data.t().numpy())
    index = writer.builder.constant(codes.name, array, quantization(params, 0))
    inputs: list[Value | int] = [x, index]
    point = value_names.dequantize(value_names.point_of_codes(codes.name) or codes.name)
    shape = tuple(codes.data.shape)
    writer.dynamic_weights[point] = StoredPoint(index, 0, (1, 0), shape)
    if isinstance(bias, Stored):
        inputs.append(writer.builder.constant(bias.name, bias.real().detach().numpy()))
    options = {"keep_num_dims": len(x.sizes) > 2, "asymmetric_quantize_inputs": True}
    result = writer.tensor_like(name(node), node)
    return writer.emit(
        "FULLY_CONNECTED", inputs, result, 12, fused_activation_function=0, **options
    )
