"""A small float ONNX model with external weights, and data for it."""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

GRAPH = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[batch, 64] x) => (float[batch, 8] y) { h = MatMul (x, up) y = MatMul (h, down) }"""


def write_float_onnx(folder: Path) -> NDArray[np.float32]:
    """Write float.onnx and x.npy, and return the data."""
    random = np.random.default_rng(0)
    proto = onnx.parser.parse_model(GRAPH)
    for name, sizes in (("up", (64, 96)), ("down", (96, 8))):
        array = random.normal(size=sizes).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    external = {"location": "weights.data", "size_threshold": 0}
    onnx.save(proto, folder / "float.onnx", save_as_external_data=True, **external)
    x = random.normal(size=(8, 64)).astype(np.float32)
    np.save(folder / "x.npy", x)
    return x
