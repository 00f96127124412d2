"""Small ONNX files made of text: a convolution, and what a test wants behind it."""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from qtool.frontends.onnx.onnx_file import load_onnx
from qtool.frontends.onnx.onnx_module import OnnxModule

OUTPUT = "y0"


def behind_conv(text: str, opset: int = 18, sizes: str = "N,3,8,8") -> onnx.ModelProto:
    """`text` reads h [N, 4, 8, 8], w2 [4, 4, 3, 3] and b [4], and gives y0."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g (float[{sizes}] x) => (y0) {{
            h = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w, b)
            {text}
        }}"""
    )
    random = np.random.default_rng(0)
    for name, shape in (("w", (4, 3, 3, 3)), ("b", (4,)), ("w2", (4, 4, 3, 3))):
        array = random.normal(size=shape).astype(np.float32)
        if name in {n for node in model.graph.node for n in _names(node)}:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}{i}"
    return model


def _names(node: onnx.NodeProto) -> list[str]:
    inner = [n for a in node.attribute for each in a.g.node for n in _names(each)]
    return [*node.input, *inner]


def loaded(model: onnx.ModelProto, folder: Path) -> OnnxModule:
    file = folder / "model.onnx"
    onnx.save(model, file)
    return load_onnx(file)


def images(count: int = 2, channels: int = 3) -> torch.Tensor:
    random = np.random.default_rng(count)
    return torch.from_numpy(random.normal(size=(count, channels, 8, 8)).astype(np.float32))
