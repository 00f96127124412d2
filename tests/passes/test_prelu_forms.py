"""PReLU of large tensors is written as operators that the runtime has fast kernels for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

from qtool.passes import CANONICAL, FOR_FILES
from tests.passes.differential import rewritten, written

PASSES = [*CANONICAL, FOR_FILES["prelu_forms"]]
LARGE, SMALL = (2, 8, 24, 24), (2, 8, 4, 4)


def prelu(most: float, count: int = 8) -> nn.PReLU:
    layer = nn.PReLU(count)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-0.5, most, count))
    return layer


@pytest.mark.parametrize("count", [1, 8])
def test_slopes_up_to_one_make_a_maximum(count: int) -> None:
    result = rewritten(prelu(1.0, count), LARGE, passes=PASSES)
    assert result.ops() == ["mul", "maximum"]


def test_steeper_ones_add_what_is_below_zero() -> None:
    assert rewritten(prelu(1.5), LARGE, passes=PASSES).ops() == ["clamp", "mul", "add"]


def test_a_small_tensor_keeps_its_one_call() -> None:
    assert rewritten(prelu(1.0), SMALL, passes=PASSES).ops() == ["prelu"]


@pytest.mark.parametrize("most", [0.5, 1.5])
@pytest.mark.parametrize("scheme", ["static", "int8-weights"])
def test_the_file_is_verified_and_computes_the_same(
    scheme: str, most: float, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), prelu(most), nn.Conv2d(8, 8, 3)).eval()
    batch = torch.randn(8, 3, 32, 32)
    recipe = [{"select": "0", "as": scheme}]
    file = written(model, batch, recipe, tmp_path / "m.onnx")
    assert "1 prelu" in dict(file.summary().rows)["float"]
    assert "PRelu" not in {n.op_type for n in onnx.load(file.path).graph.node}
    session = ort.InferenceSession(file.path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
    wanted = model(batch).detach().numpy()
    assert np.square(output - wanted).sum() < 1e-3 * np.square(wanted).sum()
