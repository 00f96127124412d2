"""Padding before long kernels is an operator in float files, before others an attribute."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.backends.onnxruntime.session import run, session


class Padded(nn.Module):
    """A padding of 7 rows at each end, and what the convolution pads itself."""

    def __init__(self, kernel: tuple[int, ...], padding: int = 0, sides: int = 2) -> None:
        super().__init__()
        kind = nn.Conv2d if sides == 2 else nn.Conv1d
        self.conv, self.widths = (
            kind(2, 3, kernel, padding=padding),
            (0, 0, 7, 7)[2 * (2 - sides) :],
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(F.pad(x, self.widths)))


def written(network: nn.Module, shape: tuple[int, ...], folder: Path) -> onnx.ModelProto:
    """The float file, which ONNX Runtime computes as torch does."""
    torch.manual_seed(0)
    x = torch.randn(2, *shape)
    file = qtool.capture_model(network.eval(), x).export_float(folder / "float.onnx")
    with torch.no_grad():
        expected = network(x).numpy()
    np.testing.assert_allclose(run(session(str(file)), [x.numpy()])[0], expected, atol=1e-5)
    return onnx.load(file)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("kernel", [(15, 1), (11, 11)])
def test_long_kernels(kernel: tuple[int, ...], padding: int, tmp_path: Path) -> None:
    model = written(Padded(kernel, padding), (2, 24, 24), tmp_path)
    pad, conv = model.graph.node[:2]
    assert (pad.op_type, conv.op_type) == ("Pad", "Conv")
    pads = next(list(a.ints) for a in conv.attribute if a.name == "pads")
    assert pads == [padding] * 4
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(tmp_path / "float.onnx", options, ["CPUExecutionProvider"])
    ran = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert "Pad" in ran, "the runtime moved it into the convolution"


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (Padded((3, 3)), (2, 24, 24)),
        (Padded((15, 3)), (2, 24, 24)),
        (Padded((15,), sides=1), (2, 24)),
        (nn.Conv2d(2, 3, (15, 1), padding=(7, 0)), (2, 24, 24)),
    ],
    ids=["short", "long and short", "one dimension", "a padding of the convolution itself"],
)
def test_others(network: nn.Module, shape: tuple[int, ...], tmp_path: Path) -> None:
    model = written(network, shape, tmp_path)
    assert "Pad" not in [node.op_type for node in model.graph.node]


def test_the_quantized_file_has_no_pad(tmp_path: Path) -> None:
    network = Padded((15, 1)).eval()
    model = qtool.quantize(network, [torch.randn(4, 2, 24, 24)], accuracy="fast")
    model.export(tmp_path / "int8.onnx")
    assert "Pad" not in [n.op_type for n in onnx.load(tmp_path / "int8.onnx").graph.node]
