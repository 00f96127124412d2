"""Results in parts: the simulation that judges has the codes of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from qtool import QuantizedModel
from qtool.api.conversion import quantize
from qtool.backends.open_files import open_model
from qtool.core.sqnr import sqnr
from qtool.planning.result_parts import refine_results


def small_head(target: str) -> tuple[QuantizedModel, torch.Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2)).eval()
    x = torch.randn(64, 64)
    return quantize(network, [x], target=target, accuracy="fast", observer="minmax"), x


def test_the_simulation_has_the_codes_of_the_file(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    model, x = small_head("tflite")
    model.export(tmp_path / "model.tflite", verify=False)
    (file,) = open_model(tmp_path / "model.tflite").run([x.numpy()])
    with torch.no_grad():
        real, coarse = model.reference.module(x).numpy(), model(x).numpy()
        refine_results(model.module, model.plan)
        fine = model(x).numpy()
    assert sqnr(real, fine) == pytest.approx(sqnr(real, file), abs=0.2)
    assert sqnr(real, fine) > sqnr(real, coarse) + 0.5
    refine_results(model.module, model.plan)  # a second time it changes nothing
    with torch.no_grad():
        np.testing.assert_array_equal(model(x).numpy(), fine)


@pytest.mark.parametrize("target", ["tflite-micro", "onnxruntime"])
def test_other_targets_have_the_codes_of_the_plan(target: str) -> None:
    model, x = small_head(target)
    before = model(x)
    refine_results(model.module, model.plan)
    assert torch.equal(model(x), before)
