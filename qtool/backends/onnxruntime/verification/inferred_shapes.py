"""Types, shapes and MACs of the tensors and nodes of an ONNX file."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from qtool.backends.onnx.mac_counts import onnx_macs
from qtool.backends.onnx.reading import attributes_of, graph_of, name_of

_DATA = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.UINT8, ir.DataType.INT8)


class InferredShapes:
    """Types and shapes that ONNX infers for a file; a dynamic dimension counts as 1."""

    def __init__(self, model: onnx.ModelProto) -> None:
        try:
            inferred = onnx.shape_inference.infer_shapes(_one_sample(model), data_prop=True)
        except Exception:  # noqa: BLE001  # custom operators: use what the file states
            inferred = model
        graph = graph_of(inferred)
        self.values = ir.convenience.create_value_mapping(graph)
        first = self.shape(graph.inputs[0]) if graph.inputs else None
        self.samples = first[0] if first else 1

    def is_data(self, value: ir.Value) -> bool:
        """Return whether a value holds floats or codes, not sizes and indices."""
        inferred = self.values.get(name_of(value))
        return inferred is None or inferred.dtype is None or inferred.dtype in _DATA

    def shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape of a value, or None if it cannot be inferred."""
        inferred = self.values.get(name_of(value))
        if inferred is None or inferred.shape is None:
            return None
        return tuple(s if isinstance(s, int) and s > 0 else 1 for s in inferred.shape)

    def macs(self, node: ir.Node) -> int:
        """Return the MACs of one sample; 0 if the shape cannot be inferred."""
        inputs, result = [self.shape(v) for v in node.inputs], self.shape(node.outputs[0])
        return onnx_macs(node.op_type, inputs, result, attributes_of(node)) // self.samples


def _one_sample(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with dynamic dimensions of 1, so that sizes computed from them are inferred."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.value_info[:]
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in fixed.graph.input:
        for size in value.type.tensor_type.shape.dim:
            size.dim_value = size.dim_value or 1
    return fixed
