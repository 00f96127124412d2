"""A captured model, which shares the user's weights."""

import copy
import logging

import pytest
import torch
from torch import nn

import qtool
from qtool.core.errors import CaptureError


@pytest.mark.parametrize("change", ["in place", "loaded"])
def test_weights_that_changed_since_are_refused(change: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    x = torch.randn(4, 3, 8, 8)
    captured = qtool.capture_model(net, x)
    calibration = qtool.calibrate(captured, [x])
    qtool.convert(captured, calibration)
    if change == "loaded":
        net.load_state_dict(copy.deepcopy(net.state_dict()))
    else:
        with torch.no_grad():
            net[2].weight.mul_(3)
    for use in (
        lambda: qtool.convert(captured, calibration),
        lambda: qtool.calibrate(captured, [x]),
        lambda: qtool.quantize(captured, [x]),
    ):
        with pytest.raises(CaptureError, match="changed since it was captured; capture it again"):
            use()


def test_batch_norms_as_initialised_are_said(caplog: pytest.LogCaptureFixture) -> None:
    layers = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 2, 8, 8)
    message = "the statistics of all 2 BatchNorm layers are those of initialisation"
    with caplog.at_level(logging.WARNING, "qtool"):
        qtool.capture_model(model, x)
    assert len([m for m in caplog.messages if message in m]) == 1
    caplog.clear()
    model[3].running_mean[2] = 0.1  # one of them has seen data
    with caplog.at_level(logging.WARNING, "qtool"):
        qtool.capture_model(model, x)
        qtool.capture_model(nn.Conv2d(2, 3, 3).eval(), x)
    assert not caplog.messages


def test_it_says_what_it_is_in_a_line() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval()
    captured = qtool.capture_model(net, torch.ones(2, 3))
    assert repr(captured).startswith("<Captured: 2 operators; input: float32[batch, 3]; ")
