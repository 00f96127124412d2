"""Small ONNX models for reproductions of defects."""

import numpy as np
import onnx
import onnxruntime as ort
from onnx import parser


def model(text: str, opset: int = 18) -> onnx.ModelProto:
    """Parse a graph in ONNX's text form."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')


def run(graph: onnx.ModelProto, x: np.ndarray, optimised: bool = True) -> np.ndarray:
    """Return the first output of ONNX Runtime for one input."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(graph.SerializeToString(), options)
    return session.run(None, {session.get_inputs()[0].name: x})[0]
