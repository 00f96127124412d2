"""A largest or smallest value along axes, kept apart from the rounding that follows.

OpenVINO takes a FakeQuantize into the reduction before it, and gives other codes then. A Reshape
between the two holds it: the reduction keeps its dimensions and a Squeeze drops them, or it drops
them and an Unsqueeze brings them back. (One that changes nothing is taken out before.)
"""

from __future__ import annotations

import onnx_ir as ir

from qtool.backends.onnx.reading import attributes_of
from qtool.core import value_names


def isolate_reduce_extremes(model: ir.Model) -> None:
    """Puts that operator behind every ReduceMax and ReduceMin, in place."""
    for node in [n for n in model.graph if n.op_type in ("ReduceMax", "ReduceMin")]:
        axes = node.inputs[1] if len(node.inputs) > 1 else None
        kept = attributes_of(node).get("keepdims", 1)
        if axes is None or node.outputs[0].dtype != ir.DataType.FLOAT:
            continue  # all dimensions are one number, which no layer reads
        reduced, made = node.outputs[0], "Unsqueeze" if kept else "Squeeze"
        node.attributes["keepdims"] = ir.AttrInt64("keepdims", 1 - kept)
        apart = ir.Node("", made, [reduced, axes], name=node.name)
        result = apart.outputs[0]
        reduced.replace_all_uses_with(result, replace_graph_outputs=True)
        apart.replace_input_with(0, reduced)
        result.name, result.type, result.shape = reduced.name, reduced.type, reduced.shape
        node.name = value_names.helper(str(node.name), node.op_type, str(result.name))
        reduced.name, reduced.shape = node.name, None
        model.graph.insert_after(node, apart)
