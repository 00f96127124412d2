"""The warning of a conversion whose result is slower than float. Times are given, not taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool import QuantizedModel
from qtool.evaluation.latency import speedup as module
from qtool.evaluation.latency.interleaved_timing import Ratio, Spread, Timing
from qtool.evaluation.latency.node_times import NodeTime

X = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NODES = (
    NodeTime("input", ("", "QuantizeLinear"), (0.0, 30.0)),
    NodeTime("0", ("Conv", "QLinearConv"), (400.0, 100.0)),
    NodeTime("1", ("Conv", "QLinearConv"), (200.0, 900.0)),
    NodeTime("2", ("Add", "Add"), (5.0, 5.0)),
)


def quantized(target: str = "onnxruntime") -> QuantizedModel:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).eval()
    return qtool.quantize(net, [X], target=target)


def timing(ratio: float) -> Timing:
    spreads = (Spread(1.0, 0.9, 1.1), Spread(1 / ratio, 0.9 / ratio, 1.1 / ratio))
    ratios = (Ratio(1.0, 1.0, 1.0, 1.0, 1.0), Ratio(ratio, ratio, ratio, ratio, ratio))
    return Timing(1, 1, 100, 1.0, spreads, ratios)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch):
    seen = {}

    def set_ratio(ratio: float):
        def timed(files, inputs, **_):
            seen["shapes"] = [x.shape for x in inputs]
            return timing(ratio)

        def profiled(files, inputs, **_):
            seen["profiled"] = True
            return NODES

        monkeypatch.setattr(module, "time_files", timed)
        monkeypatch.setattr(module, "profile_nodes", profiled)
        return seen

    return set_ratio


def test_slower_than_float_is_said_with_the_operators_that_lose_most(pretend, tmp_path: Path):
    seen = pretend(0.5)
    model = quantized()
    model.export(tmp_path / "m.onnx")
    found = module.measure_speedup(model, tmp_path / "m.onnx")
    assert found is not None
    assert found.slower
    assert seen["shapes"] == [(1, 3, 8, 8)]  # one sample of the batch it was verified with
    assert [n.name for n in found.costly] == ["1", "input"]  # not the ones that win or are even
    warning = found.warning()
    assert warning is not None
    assert warning.splitlines() == [
        "int8 is slower than float here (0.50x); slowest operators:",
        "  1: 900 us in QLinearConv, 200 us in float",
        "  input: 30 us in QuantizeLinear, 0 us in float",
        "try `qtool tune`, or keep these layers in float (see --recipe)",
    ]
    assert found.to_json()["costly"][0]["name"] == "1"


def test_an_export_that_is_timed_says_so_in_its_result(pretend, tmp_path: Path):
    pretend(0.5)
    found = quantized().export(tmp_path / "m.onnx", timing=0.01)
    assert found is not None
    speed, warning = found.notes
    assert "0.50x" in speed
    assert found.details().endswith(f"{speed}\n{warning}")
    assert found.to_json()["notes"] == [speed, warning]
    untimed = quantized().export(tmp_path / "m.onnx", timing=0)
    assert untimed is not None
    assert untimed.notes == ()


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_a_small_model_is_looked_at_by_itself(
    ratio: float, pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("qtool.api.quantized_model.QUICK_TIMING", 0.01)
    pretend(ratio)
    found = quantized().export(tmp_path / "m.onnx")
    assert found is not None
    assert ["slower than float here" in r for r in found.notes] == [True] * (ratio < 1)
    monkeypatch.setattr("qtool.api.quantized_model.SMALL_MODEL", 0)
    found = quantized().export(tmp_path / "m.onnx")
    assert found is not None
    assert found.notes == ()


def test_faster_is_a_line_and_no_warning(pretend, tmp_path: Path):
    seen = pretend(2.0)
    model = quantized()
    model.export(tmp_path / "m.onnx")
    found = module.measure_speedup(model, tmp_path / "m.onnx")
    assert found is not None
    assert found.warning() is None
    assert "2.00x" in str(found)
    assert "profiled" not in seen


def test_a_target_that_runs_elsewhere_is_not_timed(pretend, tmp_path: Path):
    pretend(2.0)
    model = quantized("tflite")
    model.export(tmp_path / "m.onnx")
    assert module.measure_speedup(model, tmp_path / "m.onnx") is None


def test_real_files_run(tmp_path: Path):
    model = quantized()
    model.export(tmp_path / "m.onnx")
    found = model.speed(tmp_path / "m.onnx", seconds=0.01)
    assert found is not None
    assert found.timing.rounds >= module.MIN_ROUNDS
    assert found.ratio > 0


class Neighbours(nn.Module):
    """Rows by number, as graphs have them: of one row there is no second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x))[edges])


def test_a_model_that_takes_no_single_sample_is_timed_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("qtool.api.quantized_model.QUICK_TIMING", 0.01)
    dynamic = {"x": {0: "nodes"}, "edges": {0: "edges"}}
    batch = (torch.randn(5, 4), torch.tensor([4, 3, 2, 1, 4, 0]))
    model = qtool.quantize(Neighbours().eval(), [batch], dynamic=dynamic)
    assert model.export(tmp_path / "m.onnx") is not None
    found = model.speed(tmp_path / "m.onnx", seconds=0.01)
    assert found is not None
    assert "in int8, 5 samples, one thread" in str(found)
