"""A constant pad of one axis, written as one of two axes and a slice.

OpenVINO moves a dequantization behind a pad of a single axis and loses the zero point on the way:
what is padded is off by all of it. A pad of two axes it leaves where it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qtool.backends.onnx.reading import attributes_of
from qtool.core import value_names

Widths = np.ndarray[Any, Any]


def widen_single_axis_pads(model: ir.Model) -> None:
    """Pads a second axis as well, by a value that is cut off again, in place."""
    for pad in [n for n in model.graph if n.op_type == "Pad"]:
        given = pad.inputs[1] if len(pad.inputs) > 1 else None
        widths = None if given is None else given.const_value
        floats = pad.outputs[0].dtype == ir.DataType.FLOAT
        if widths is None or len(pad.inputs) > 3 or not floats:
            continue
        found = widths.numpy().reshape(2, -1)
        axes = np.flatnonzero(found.any(axis=0))
        constant = attributes_of(pad).get("mode", "constant") == "constant"
        if constant and len(axes) == 1 and found.shape[1] > 1 and (found > 0).any():
            _widened(model, pad, found, int(axes[0]))


def _widened(model: ir.Model, pad: ir.Node, widths: Widths, axis: int) -> None:
    other = widths.shape[1] - 1 if axis != widths.shape[1] - 1 else axis - 1
    wide, result = widths.copy(), pad.outputs[0]
    wide[1, other] += 1
    said = str(result.name)
    pads = _constant(model, f"{said}.pads", wide.reshape(-1))
    bounds = [
        _constant(model, f"{said}.{what}", np.array([value]))
        for what, value in (("from", 0), ("to", -1), ("axis", other))
    ]
    cut = ir.Node("", "Slice", [result, *bounds], name=pad.name)
    result.replace_all_uses_with(cut.outputs[0], replace_graph_outputs=True)
    cut.replace_input_with(0, result)
    pad.replace_input_with(1, pads)
    cut.outputs[0].name = result.name
    cut.outputs[0].type, cut.outputs[0].shape = result.type, result.shape
    pad.name = value_names.helper(str(pad.name), "Pad", said)
    result.name, result.shape = pad.name, None
    model.graph.insert_after(pad, cut)


def _constant(model: ir.Model, name: str, value: Widths) -> ir.Value:
    tensor = ir.tensor(value.astype(np.int64), name=name)
    found = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
    found.shape = ir.Shape(value.shape)
    model.graph.register_initializer(found)
    return found
