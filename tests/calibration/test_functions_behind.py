"""Ranges of tensors in front of activation functions, by the error behind these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool import observers
from qtool.calibration import solve_parameters
from qtool.calibration.functions_behind import Floats, Function, function_behind, without_flat_ends
from qtool.core import graph as G
from qtool.core.types import UINT8
from qtool.observers import Bins


class Block(nn.Module):
    """A convolution whose results reach far below zero, an activation function, a convolution."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)
        with torch.no_grad():
            self.first.weight *= 3
            self.first.weight[4:] *= 6
            self.first.get_parameter("bias")[4:] -= 60
            self.last.weight[:, 4:] *= 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if self.kind == "hard_swish":
            y = F.hardswish(y)
        else:
            gated = y * y.sigmoid()
            y = gated + y if self.kind == "other" else gated
        result: torch.Tensor = self.last(y)
        return result


def images(seed: int, count: int = 16) -> torch.Tensor:
    return torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


def block(kind: str) -> Block:
    torch.manual_seed(0)
    return Block(kind).eval()


def graph_of(kind: str) -> tuple[torch.fx.GraphModule, dict[str, torch.fx.Node]]:
    captured = qtool.capture_model(block(kind), images(0))
    module = captured.for_target("onnxruntime")[0].module
    return module, {G.name_of(n): n for n in module.graph.nodes}


@pytest.mark.parametrize("kind", ["gated", "hard_swish"])
def test_the_function_behind_a_convolution(kind: str) -> None:
    module, each = graph_of(kind)
    found = function_behind(module, each["first"])
    assert found is not None
    x = np.linspace(-8, 8, 33)
    exact = F.silu if kind == "gated" else F.hardswish
    assert np.allclose(found(x), exact(torch.from_numpy(x)).numpy())


def test_other_readers_need_the_values_themselves() -> None:
    module, each = graph_of("other")
    assert function_behind(module, each["first"]) is None
    assert function_behind(module, each["last"]) is None


def values_of(function: Any) -> Function:
    def values(x: Floats) -> Floats:
        result: Floats = function(torch.from_numpy(x)).numpy()
        return result

    return values


def values(middle: float) -> tuple[torch.Tensor, Bins]:
    x = 12 * torch.randn(100_000, generator=torch.Generator().manual_seed(1)) + middle
    histogram = observers.Histogram(None)
    histogram.update(x)
    (bins,) = histogram.channel_bins()
    return x, bins


def test_ends_at_which_the_function_is_flat() -> None:
    x, bins = values(-20)
    found = x.amin().double(), x.amax().double()
    assert without_flat_ends(found, bins, lambda v: v, 255) == found
    for function, least in ((F.silu, -13), (F.hardswish, -3.5), (torch.sigmoid, -13)):
        low, high = without_flat_ends(found, bins, values_of(function), 255)
        assert least < low < -2.4
        assert (high < 13) if function is torch.sigmoid else (high == found[1])


def test_values_have_less_error_behind_the_function() -> None:
    x, bins = values(-20)
    found = x.amin().double(), x.amax().double()
    errors = []
    for ends in (found, without_flat_ends(found, bins, values_of(F.silu), 255)):
        coded = observers.solve(*ends, UINT8, False, None).round_trip(x)
        errors.append(float((F.silu(coded) - F.silu(x)).square().mean()))
    assert errors[1] < errors[0] / 4


def sqnr(kind: str, path: Path) -> float:
    """Return the SQNR in dB of the file in ONNX Runtime, on new data."""
    model = qtool.quantize(block(kind), [images(i) for i in range(3)], accuracy="fast", recover=[])
    model.export(path)
    x = images(9)
    with torch.no_grad():
        exact = block(kind)(x).numpy()
    (coded,) = ort.InferenceSession(path).run(None, {"x": x.numpy()})
    return float(10 * np.log10((exact**2).sum() / ((exact - coded) ** 2).sum()))


@pytest.mark.parametrize("kind", ["gated", "hard_swish"])
def test_the_file_has_less_noise(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sqnr(kind, tmp_path / "model.onnx")
    monkeypatch.setattr(solve_parameters, "function_behind", lambda *_: None)
    assert found > sqnr(kind, tmp_path / "plain.onnx") + 3
