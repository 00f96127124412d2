"""A small ONNX model before and after a workaround, run in ONNX Runtime as written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import parser


def rewritten(text: str, workaround: Callable[[ir.Model], None]) -> list[str]:
    """Apply a workaround to a model of one input x; return its operators.

    Asserts that the checker accepts the model and that its results stay equal.
    """
    before = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g {text}')
    model = ir.from_proto(onnx.shape_inference.infer_shapes(before))
    for node in model.graph:
        node.name = node.outputs[0].name
    for value in model.graph.initializers.values():
        assert value.const_value is not None
    workaround(model)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    for one, other in zip(_run(before), _run(after), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    return [node.op_type for node in after.graph.node]


def _run(model: onnx.ModelProto) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    (x,) = session.get_inputs()
    values = -np.random.default_rng(0).random([4 if n == "N" else n for n in x.shape], np.float32)
    return session.run(None, {x.name: values})
