"""Workaround for OpenVINO: a maximum or minimum along axes that is quantized.

Runtime: OpenVINO, seen in 2026.4, operators ReduceMax and ReduceMin before QuantizeLinear.
Defect: the FakeQuantize is fused into the kernel of the reduction, which keeps its results in the
type of the codes before it quantizes them: rounded to integers, negative ones to 0.
Rewrite: a reshape between the two. The reduction keeps its dimensions and a Squeeze drops them, or
it drops them and an Unsqueeze restores them. A reshape that changes nothing would be removed before
the fusion.
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.backends.onnx.graph_edits import append_node, attributes_of
from qtool.backends.workaround import Workaround


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
