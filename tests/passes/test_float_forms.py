"""Float layers of files: without the channel of zeros of the integer convolution; PReLU of large
tensors as operators that the runtime has fast kernels for."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

from qtool.passes import CANONICAL, FOR_FILES, FOR_TARGETS
from tests.named_cases import cases
from tests.passes.differential import Function, assert_near, rewritten, written

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
    assert_near(file.path, model, batch)


PRELU = [*CANONICAL, FOR_FILES["prelu_forms"]]
LARGE, SMALL = (2, 8, 24, 24), (2, 8, 4, 4)


def prelu(most: float, count: int = 8) -> nn.PReLU:
    layer = nn.PReLU(count)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-0.5, most, count))
    return layer


@pytest.mark.parametrize("count", [1, 8])
def test_slopes_up_to_one_make_a_maximum(count: int) -> None:
    result = rewritten(prelu(1.0, count), LARGE, passes=PRELU)
    assert result.ops() == ["mul", "maximum"]


def test_steeper_ones_add_what_is_below_zero() -> None:
    assert rewritten(prelu(1.5), LARGE, passes=PRELU).ops() == ["clamp", "mul", "add"]


def test_a_small_tensor_keeps_its_one_call() -> None:
    assert rewritten(prelu(1.0), SMALL, passes=PRELU).ops() == ["prelu"]


@pytest.mark.parametrize("most", [0.5, 1.5])
@pytest.mark.parametrize("scheme", ["static", "int8-weights"])
def test_a_file_without_prelu_computes_the_same(scheme: str, most: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), prelu(most), nn.Conv2d(8, 8, 3)).eval()
    batch = torch.randn(8, 3, 32, 32)
    recipe = [{"select": "0", "as": scheme}]
    file = written(model, batch, recipe, tmp_path / "m.onnx")
    assert "1 prelu" in dict(file.summary().rows)["float"]
    assert "PRelu" not in {n.op_type for n in onnx.load(file.path).graph.node}
    assert_near(file.path, model, batch)
