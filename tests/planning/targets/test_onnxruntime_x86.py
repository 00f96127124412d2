"""What ONNX Runtime could run in integers, and is left in float since it is quicker so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qtool
from qtool.planning.plan import Execution


@pytest.mark.parametrize(
    ("first", "integer"),
    [
        pytest.param(nn.Conv3d(1, 8, 3, groups=1), False, id="one channel"),
        pytest.param(nn.Conv3d(3, 8, 3), False, id="a clip"),
        pytest.param(nn.Conv3d(3, 8, 2, stride=2), True, id="patches"),
        pytest.param(nn.Conv3d(4, 8, 3), True, id="more channels"),
        pytest.param(nn.Conv3d(8, 8, 3, groups=2), False, id="narrow groups"),
        pytest.param(nn.Conv3d(16, 8, 3, groups=2), True, id="wide groups"),
        pytest.param(nn.Conv3d(8, 8, 3, groups=8), True, id="depthwise"),
    ],
)
def test_volumes_of_few_channels(first: nn.Conv3d, integer: bool) -> None:
    model = nn.Sequential(first, nn.ReLU(), nn.Conv3d(8, 4, 3)).eval()
    captured = qtool.capture_model(model, torch.randn(2, first.in_channels, 8, 8, 8))
    plan = qtool.quantize(captured, [torch.randn(2, first.in_channels, 8, 8, 8)]).plan
    found = {d.node: d for d in plan.nodes}["0"]
    assert (found.execution is Execution.INTEGER) is integer
    assert integer or "few channels" in found.reason
