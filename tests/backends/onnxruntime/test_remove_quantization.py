"""ONNX files as model files: in float, with the constants of operators that move codes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import qtool
from qtool.backends.formats import open_file
from qtool.backends.onnxruntime.session import run, session
from qtool.core.errors import VerificationError
from qtool.core.sqnr import sqnr


class Image(nn.Module):
    """Three channels, which the file widens to four with codes of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.head = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


def test_a_network_of_colour_images_in_float(tmp_path: Path) -> None:
    """Its own rounded weights: nearer to the quantized file's plan than the quantized file is."""
    torch.manual_seed(0)
    model, x = Image().eval(), torch.randn(16, 3, 8, 8)
    qtool.quantize(model, [x], accuracy="fast").export(tmp_path / "model.onnx", timing=0)
    opened = open_file(tmp_path / "model.onnx")
    assert "Pad" in {n.op_type for n in onnx.load(opened.path).graph.node}
    plain = opened.write_float(tmp_path / "float.onnx")
    (real,) = run(session(plain), [x.numpy()])
    with torch.no_grad():
        decibels = sqnr(model(x).numpy(), real)
    assert decibels is not None
    assert decibels > 35
    assert not open_file(plain).is_quantized


def quantized(
    nodes: Sequence[onnx.NodeProto], path: Path, scale: Any = 0.5, axis: int | None = None
) -> Path:
    """Write Q, nodes on codes from "q" to "moved", DQ."""
    attributes = {} if axis is None else {"axis": axis}
    stored = {
        "scale": np.array(scale, np.float32),
        "zero": np.full(np.shape(scale), 7, np.uint8),
        "scalar": np.array(0.5, np.float32),
        "seven": np.array(7, np.uint8),
        "pads": np.array([0, 1, 0, 0], np.int64),
        "code": np.array(9, np.uint8),
        "row": np.array([[3, 4, 5]], np.uint8),
    }
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "scalar", "seven"], ["q"]),
            *nodes,
            helper.make_node("DequantizeLinear", ["moved", "scale", "zero"], ["y"], **attributes),
        ],
        "codes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
        value_info=[helper.make_tensor_value_info("moved", TensorProto.UINT8, None)],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def pad(*inputs: str) -> Callable[[], list[onnx.NodeProto]]:
    return lambda: [helper.make_node("Pad", ["q", "pads", *inputs], ["moved"])]


def joined() -> list[onnx.NodeProto]:
    return [
        helper.make_node("Concat", ["row", "q"], ["both"], axis=0),
        helper.make_node("Transpose", ["both"], ["moved"]),
    ]


MOVES = {
    "pad with a code": (pad("code"), lambda x: np.pad(x, ((0, 0), (1, 0)), constant_values=1.0)),
    "pad without": (pad(), lambda x: np.pad(x, ((0, 0), (1, 0)), constant_values=-3.5)),
    "concat": (joined, lambda x: np.concatenate([[[-2.0, -1.5, -1.0]], x]).T),
}


@pytest.mark.parametrize(("nodes", "expected"), MOVES.values(), ids=MOVES)
def test_operators_on_codes_get_constants_in_float(
    nodes: Callable[[], list[onnx.NodeProto]], expected: Callable[[Any], Any], tmp_path: Path
) -> None:
    """The quantized file itself is the oracle, on values that are codes."""
    path = quantized(nodes(), tmp_path / "model.onnx")
    plain = open_file(path).write_float(tmp_path / "float.onnx")
    x = np.array([[0.5, -1.0, 4.0], [2.0, 3.0, 0.0]], np.float32)
    (real,) = run(session(plain), [x])
    assert np.array_equal(real, run(session(path), [x])[0])
    assert np.array_equal(real, expected(x))
    (between,) = run(session(plain), [x + np.float32(0.1)])
    assert not np.array_equal(between, real)


def test_scales_for_each_channel_have_no_constant(tmp_path: Path) -> None:
    path = quantized(joined(), tmp_path / "model.onnx", [0.5, 0.5, 0.5], 0)
    with pytest.raises(VerificationError, match="moves codes with a scale for each channel"):
        open_file(path).write_float(tmp_path / "float.onnx")
