"""A channel of zeros for the integer convolution is taken away again where the layer is float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

from qtool.passes import CANONICAL, FOR_FILES, FOR_TARGETS
from tests.named_cases import cases
from tests.passes.differential import Function, rewritten, written

BACK = [*CANONICAL, FOR_FILES["unpad_channels"]]
IMAGE = (2, 3, 8, 8)


def test_the_float_graph_is_as_before() -> None:
    passes = [*CANONICAL, FOR_TARGETS["pad_channels"], FOR_FILES["unpad_channels"]]
    result = rewritten(nn.Conv2d(3, 16, 3), IMAGE, passes=passes)
    assert (result.counts["pad_channels"], result.counts["unpad_channels"]) == (1, 1)
    assert result.ops() == ["conv"]


@cases(
    "widths, fill, groups, count",
    ([0, 0, 0, 0, 0, 3], 0.0, 1, 1),
    ([0, 0, 0, 0, 1, 2], 0.0, 1, 0),
    ([0, 0, 0, 0, 0, 3], 1.0, 1, 0),
    ([1, 1, 0, 0, 0, 3], 0.0, 1, 0),
    ([0, 0, 0, 0, 0, 3], 0.0, 2, 0),
)
def test_only_channels_of_zeros_behind_the_others_are_taken_away(
    widths: list[int], fill: float, groups: int, count: int
) -> None:
    layer = nn.Conv2d(6, 8, 3, groups=groups)
    model = Function(lambda x, conv: conv(F.pad(x, widths, value=fill)), layer)
    assert rewritten(model, IMAGE, passes=BACK).counts["unpad_channels"] == count


@pytest.mark.parametrize("scheme", ["float", "int8-weights", "static"])
def test_the_file_has_the_fourth_channel_in_integers_alone(scheme: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 1)).eval()
    batch = torch.randn(8, 3, 12, 12)
    recipe = [{"select": "0", "as": scheme}]
    file = written(model, batch, recipe, tmp_path / "m.onnx")
    graph = onnx.load(file.path).graph
    widths = {numpy_helper.to_array(i).shape for i in graph.initializer}
    assert ((16, 4, 3, 3) in widths, (16, 3, 3, 3) in widths) == (
        scheme == "static",
        scheme != "static",
    )
    assert ("Pad" in {n.op_type for n in graph.node}) == (scheme == "static")
    session = ort.InferenceSession(file.path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
    wanted = model(batch).detach().numpy()
    assert np.square(output - wanted).sum() < 1e-3 * np.square(wanted).sum()
