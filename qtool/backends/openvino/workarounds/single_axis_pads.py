"""Workaround for OpenVINO: a constant pad of one axis between quantized values.

Runtime: OpenVINO, seen in 2026.4, operator Pad between DequantizeLinear and QuantizeLinear.
Defect: the dequantization is moved behind a pad of a single axis and loses its zero point: padded
values are off by the zero point. It stays in place before a pad of two axes.
Rewrite: a second axis is padded by one value, which a Slice removes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qtool.backends.onnx.graph_edits import add_int64, append_node, attributes_of
from qtool.backends.workaround import Workaround

_Widths = np.ndarray[Any, Any]
"""Pads as [begin or end, axis]."""


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
