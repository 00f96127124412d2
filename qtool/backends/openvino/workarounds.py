"""Rewrites of files that avoid defects of OpenVINO."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool.backends.onnx.graph_edits import add_int64, append_node, attributes_of
from qtool.backends.workaround import Workaround
from qtool.core.types import Array

_Widths = Array
"""Pads as [begin or end, axis]."""


# Workaround for OpenVINO: a maximum or minimum along axes that is quantized.
#
# Runtime: OpenVINO, seen in 2026.4, operators ReduceMax and ReduceMin before QuantizeLinear.
# Defect: the FakeQuantize is fused into the kernel of the reduction, which keeps its results in the
# type of the codes before it quantizes them: rounded to integers, negative ones to 0.
# Rewrite: a reshape between the two. The reduction keeps its dimensions and a Squeeze drops them,
# or it drops them and an Unsqueeze restores them. A reshape that changes nothing would be removed
# before the fusion.


def isolate_reduce_extremes(model: ir.Model) -> None:
    """Insert a Squeeze or Unsqueeze behind each float ReduceMax and ReduceMin, in place."""
    for node in [n for n in model.graph if n.op_type in ("ReduceMax", "ReduceMin")]:
        axes = node.inputs[1] if len(node.inputs) > 1 else None
        keep = attributes_of(node).get("keepdims", 1)
        if axes is None or node.outputs[0].dtype != ir.DataType.FLOAT:
            continue  # over all dimensions: a scalar, which no layer reads
        node.attributes["keepdims"] = ir.AttrInt64("keepdims", 1 - keep)
        append_node(model, node, "Unsqueeze" if keep else "Squeeze", [axes])


REDUCE_EXTREMES = Workaround(
    key="reduce-extremes",
    package="openvino",
    reason="a FakeQuantize fused into ReduceMax or ReduceMin makes it round to unsigned integers",
    rewrite=isolate_reduce_extremes,
    seen_in="2026.4",
    upstream="https://github.com/openvinotoolkit/openvino/pull/24704",
    reproduction="test_openvino.py::test_quantized_extreme_is_rounded_to_an_unsigned_integer",
)


# Workaround for OpenVINO: a constant pad of one axis between quantized values.
#
# Runtime: OpenVINO, seen in 2026.4, operator Pad between DequantizeLinear and QuantizeLinear.
# Defect: the dequantization is moved behind a pad of a single axis and loses its zero point: padded
# values are off by the zero point. It stays in place before a pad of two axes.
# Rewrite: a second axis is padded by one value, which a Slice removes.


def widen_single_axis_pads(model: ir.Model) -> None:
    """Pad a second axis in each float constant pad of one axis, and cut it off, in place."""
    for pad in [n for n in model.graph if n.op_type == "Pad"]:
        pads = pad.inputs[1] if len(pad.inputs) > 1 else None
        constant = None if pads is None else pads.const_value
        is_float = pad.outputs[0].dtype == ir.DataType.FLOAT
        if constant is None or len(pad.inputs) > 3 or not is_float:
            continue
        widths = constant.numpy().reshape(2, -1)
        axes = np.flatnonzero(widths.any(axis=0))
        is_constant = attributes_of(pad).get("mode", "constant") == "constant"
        if is_constant and len(axes) == 1 and widths.shape[1] > 1 and (widths > 0).any():
            _widen(model, pad, widths, int(axes[0]))


def _widen(model: ir.Model, pad: ir.Node, widths: _Widths, axis: int) -> None:
    other = widths.shape[1] - 1 if axis != widths.shape[1] - 1 else axis - 1
    wide, name = widths.copy(), str(pad.outputs[0].name)
    wide[1, other] += 1
    pads = add_int64(model, f"{name}.pads", wide.reshape(-1))
    bounds = [
        add_int64(model, f"{name}.{suffix}", [value])
        for suffix, value in (("from", 0), ("to", -1), ("axis", other))
    ]
    pad.replace_input_with(1, pads)
    append_node(model, pad, "Slice", bounds)


SINGLE_AXIS_PADS = Workaround(
    key="single-axis-pads",
    package="openvino",
    reason="the dequantization behind a pad of one axis loses its zero point",
    rewrite=widen_single_axis_pads,
    seen_in="2026.4",
    upstream="https://github.com/openvinotoolkit/openvino/pull/5316",
    reproduction="test_openvino.py::test_pad_of_one_axis_is_off_by_the_zero_point",
)

OPENVINO_WORKAROUNDS = (REDUCE_EXTREMES, SINGLE_AXIS_PADS)
