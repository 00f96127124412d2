"""Types, shapes and MACs of the tensors and nodes of an ONNX file."""

from __future__ import annotations

import onnx

from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.graph_macs import GraphMacs
from qtool.backends.onnx.reading import name_of

_DATA = frozenset((
    onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.UINT8, onnx.TensorProto.INT8,
))  # fmt: skip


class InferredShapes:
    """Types and MACs of the tensors and nodes of a file; a dynamic dimension counts as 1."""

    def __init__(self, model: onnx.ModelProto) -> None:
        fixed = _one_sample(model)
        types = {i.name: i.type for i in fixed.graph.input}
        self._counts = GraphMacs(fixed.graph, fixed.opset_import, types, {})
        self._nodes = {n.output[0]: n for n in fixed.graph.node if n.output}
        stored = {t.name for t in fixed.graph.initializer}
        first = next((i.name for i in fixed.graph.input if i.name not in stored), "")
        sizes = self._counts.sizes(first)
        self.samples = sizes[0] if sizes else 1

    def is_data(self, value: Value) -> bool:
        """Return whether a value holds floats or codes, not sizes and indices."""
        kind = self._counts.types.get(name_of(value))
        return kind is None or not kind.tensor_type.elem_type or kind.tensor_type.elem_type in _DATA

    def macs(self, node: Node) -> int | None:
        """Return the MACs of a node for one sample; None if they are not known."""
        own = self._nodes.get(name_of(node.outputs[0])) if node.outputs else None
        count = None if own is None else self._counts.of(own)
        return None if count is None else count // max(1, self.samples)


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
