"""The warning of a conversion whose result is slower than float. Times are given, not taken."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool import QuantizedModel
from qtool.evaluation import speedup as module
from qtool.evaluation.latency.interleaved_timing import Ratio, Spread, Timing
from qtool.evaluation.latency.node_times import NodeTime

X = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NODES = (
    NodeTime("input", ("", "QuantizeLinear"), (0.0, 30.0)),
    NodeTime("0", ("Conv", "QLinearConv"), (785.0, 100.0)),
    NodeTime("3", ("Conv", "QLinearConv"), (200.0, 900.0)),
    NodeTime("2", ("Add", "Add"), (5.0, 5.0)),
    NodeTime("softmax", ("Softmax", "Softmax"), (5.0, 500.0)),
    NodeTime("(runtime)", ("", "QuantizeLinear"), (0.0, 50.0)),
)


def quantized(target: str = "onnxruntime") -> QuantizedModel:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).eval()
    return qtool.quantize(net, [X], target=target, accuracy="fast")


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

        monkeypatch.setattr("qtool.evaluation.latency.decoding.time_files", timed)
        monkeypatch.setattr("qtool.evaluation.latency.decoding.profile_nodes", profiled)
        return seen

    return set_ratio


ADVICE = "`qtool tune` measures files with other layers in float, and weighs their accuracy"


def test_slower_than_float_is_said_with_the_operators_that_lose_most(pretend, tmp_path: Path):
    seen = pretend(0.5)
    model = quantized()
    model.export(tmp_path / "m.onnx")
    found = module.measure_speedup(model, tmp_path / "m.onnx")
    assert found.slower
    assert seen["shapes"] == [(1, 3, 8, 8)]  # one sample of the batch it was verified with
    assert [n.name for n in found.costly] == [
        "3",
        "input",
    ]  # not those that win, are even or in float
    warning = found.warning()
    assert warning.splitlines() == [
        "int8 is slower than float here (0.50x, batch 1, 1 thread); layers that lose most:",
        "  3: 900 us in QLinearConv, 200 us in float",
        "  input 'input': 30 us to quantize it",
        ADVICE,
    ]
    assert found.to_json()["costly"][0]["name"] == "3"


def test_layers_are_not_listed_by_a_profile_that_is_off(pretend, tmp_path: Path):
    """The other tests have a run of 2 ms, which the nodes sum to within a quarter."""
    pretend(0.1)
    model = quantized()
    model.export(tmp_path / "m.onnx")
    speed = module.measure_speedup(model, tmp_path / "m.onnx")
    warning = speed.warning()
    assert warning is not None
    assert "the nodes of int8 sum to 1.58 ms" in speed.differs
    assert "layers that lose most" not in warning


def test_an_export_that_is_timed_says_so_in_its_result(pretend, tmp_path: Path):
    pretend(0.5)
    found = quantized().export(tmp_path / "m.onnx", timing=0.01)
    speed, warning = found.notes
    assert "0.50x" in speed
    assert found.details().endswith(f"{speed}\n{warning}")
    assert found.to_json()["notes"] == [speed, warning]
    untimed = quantized().export(tmp_path / "m.onnx", timing=0)
    assert untimed.notes == ()


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_a_small_model_is_looked_at_by_itself(
    ratio: float, pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("qtool.api.quantized_model.QUICK_TIMING", 0.01)
    pretend(ratio)
    found = quantized().export(tmp_path / "m.onnx")
    assert ["slower than float here" in r for r in found.notes] == [True] * (ratio < 1)
    monkeypatch.setattr("qtool.api.quantized_model.SMALL_MODEL", 0)
    found = quantized().export(tmp_path / "m.onnx")
    assert found.notes == ()


def test_faster_is_a_line_and_no_warning(pretend, tmp_path: Path):
    seen = pretend(2.0)
    model = quantized()
    model.export(tmp_path / "m.onnx")
    found = module.measure_speedup(model, tmp_path / "m.onnx")
    assert found.warning() is None
    assert "2.00x" in str(found)
    assert "profiled" not in seen


def phase(name: str, ratio: float) -> Timing:
    tokens, cached = (1, 95) if name == "step" else (96, 0)
    return replace(timing(ratio), phase=name, tokens=tokens, cached=cached)


def test_a_slow_prompt_of_weights_alone_is_no_warning():
    """Weights of few bits are for size and the time of a step."""
    speed = module.Speedup((phase("prompt", 0.5),), (), "weight-only-int4")
    assert not speed.slower
    assert speed.warning() is None
    assert "in 4-bit weights, prompt of 96 tokens, batch 1, 1 thread: 0.50x" in str(speed)
    assert not replace(speed, timings=(timing(0.5),)).slower
    both = replace(speed, timings=(phase("prompt", 0.5), phase("step", 2.0)))
    assert not both.slower
    assert both.ratio == 2.0
    assert [line.split(":")[-1][:6] for line in str(both).splitlines()] == [" 0.50x", " 2.00x"]
    label, figures = both.rows()[0]
    assert label == "step"
    assert figures.startswith("0.500 ms, 2.00x as fast as float (1.00 ms; with 95 cached")


def test_a_slow_step_of_weights_alone_is_a_warning():
    speed = module.Speedup((phase("prompt", 2.0), phase("step", 0.5)), (), "weight-only-int4")
    assert speed.slower
    warning = speed.warning()
    assert warning is not None
    assert "int8" not in warning
    assert warning.splitlines() == [
        "a step is slower than float here (0.50x, step with 95 cached tokens, batch 1, 1 thread)",
        ADVICE,
    ]


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
    model = qtool.quantize(Neighbours().eval(), [batch], dynamic=dynamic, accuracy="fast")
    assert model.export(tmp_path / "m.onnx") is not None
    found = model.speed(tmp_path / "m.onnx", seconds=0.01)
    assert found is not None
    assert "in int8, batch 5, 1 thread" in str(found)


def test_only_a_rounding_is_said_to_quantize_an_input() -> None:
    assert module._cost(NodeTime("x", ("", "QuantizeLinear"), (0.0, 3.0))).startswith("  input 'x'")
    cost = module._cost(NodeTime("q_proj", ("", "MatMulNBits"), (0.0, 3.0)))
    assert cost == "  q_proj: 3 us in MatMulNBits, 0 us in float"
