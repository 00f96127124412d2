"""Captured models: objects by name, fixed and suggested sizes, optional packages."""

import copy
import logging
import re
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.core.errors import CaptureError, DataError
from qtool.core.versions import DISTRIBUTION
from qtool.frontends.captured_model import capture_model
from qtool.frontends.named_objects import evaluate_call, is_call, parse_call
from qtool.frontends.onnx.onnx_file import load_onnx
from qtool.frontends.optional_packages import PACKAGES
from qtool.frontends.torch.example_inputs import SuggestedSizes
from tests.named_cases import cases


def test_an_extra_requires_every_package() -> None:
    required = {
        re.split(r"[^\w-]", line)[0] for line in requires(DISTRIBUTION) or [] if "extra" in line
    }
    assert set(PACKAGES.values()) <= required


@cases(
    "source, name, args, kwargs",
    ("a.b:f()", "a.b:f", [], {}),
    ("a:f(1, 'x', size=(2, 3))", "a:f", [1, "x"], {"size": (2, 3)}),
    (
        "a:B.c(weights=None, deep={'n': [1.5]})",
        "a:B.c",
        [],
        {"weights": None, "deep": {"n": [1.5]}},
    ),
)
def test_calls(source: str, name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    assert is_call(source)
    assert parse_call(source, DataError) == (name, args, kwargs)


@pytest.mark.parametrize(
    "source",
    ["a:f(g())", "a:f(open)", "a:f(x for x in y)", "a:f(1", "a:(f)", "a:" + "f(" * 500 + ")"],
)
def test_what_is_no_call_with_literals(source: str) -> None:
    with pytest.raises(DataError, match="cannot read the call"):
        parse_call(source, DataError)


def test_a_call_is_made() -> None:
    assert evaluate_call("fractions:Fraction(3, 4)", DataError) * 4 == 3
    with pytest.raises(DataError, match=r"calling fractions:Fraction\(1, 0\) failed: ZeroDivision"):
        evaluate_call("fractions:Fraction(1, 0)", DataError)


@pytest.mark.parametrize("change", ["in place", "loaded"])
def test_weights_that_changed_since_are_refused(change: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    x = torch.randn(4, 3, 8, 8)
    captured = qtool.capture_model(net, x)
    calibration = qtool.calibrate(captured, [x])
    qtool.convert(captured, calibration, accuracy="fast")
    if change == "loaded":
        net.load_state_dict(copy.deepcopy(net.state_dict()))
    else:
        with torch.no_grad():
            net[2].weight.mul_(3)
    for use in (
        lambda: qtool.convert(captured, calibration, accuracy="fast"),
        lambda: qtool.calibrate(captured, [x]),
        lambda: qtool.quantize(captured, [x], accuracy="fast"),
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


def test_outputs_that_are_rounding_errors_at_another_size_do_not_fix_it(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[N, H, 4096] x) => (float[N, H, 1] y)
        { y = MatMul (x, w) }"""
    )
    ones = np.ones((4096, 1), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(ones, "w"))
    onnx.save(model, tmp_path / "sum.onnx")
    draw = torch.Generator().manual_seed(0)
    half = torch.rand(4, 8, 2048, generator=draw)
    x = torch.cat([half, -half], 2)  # sums of 0 but for what each order of additions rounds
    x = torch.cat([x, torch.rand(4, 8, 4096, generator=draw)], 1)  # the second half of the rows
    graph = capture_model(load_onnx(tmp_path / "sum.onnx"), x).graph
    assert graph.inputs[0].shape == ("N", "H", 4096)


SIZES = {"x": {0: "batch", 1: "length"}}


class Fixed(nn.Module):
    """Adds a table of 6 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


def test_a_suggested_dimension_is_fixed_with_a_note() -> None:
    model, x = Fixed().eval(), torch.ones(2, 6, 3)
    captured = qtool.capture_model(model, x, SuggestedSizes(SIZES))
    assert captured.graph.inputs[0].shape == ("batch", 6, 3)
    (note,) = captured.notes
    assert "dimension 1 of input 'x' is fixed to 6" in note
    with pytest.raises(CaptureError, match="dimension 1 of input 'x' cannot be dynamic"):
        qtool.capture_model(model, x, SIZES)
