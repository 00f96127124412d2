"""Tiny ONNX files: a product with a weight, with or without an error in it."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["linear_file"]


def linear_file(
    path: Path, weight: np.ndarray, *, name: str = "x", size: int | str = "batch", rank: int = 2
) -> Path:
    """y = x @ weight, as an ONNX file; `size` of the batch may be fixed."""
    inputs, outputs = weight.shape
    outer = [size, *(["time"] * (rank - 2))]
    graph = helper.make_graph(
        [helper.make_node("MatMul", [name, "w"], ["y"], name="product")],
        "linear",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [*outer, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*outer, outputs])],
        [numpy_helper.from_array(weight.astype(np.float32), "w")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path
    )
    return path
