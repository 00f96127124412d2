"""Results of linear layers that kernels round to codes: one range for all their channels."""

import functools
from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool import QuantizedModel
from qtool.algorithms.output_equalization import equalizable_layers
from qtool.core import graph as G
from qtool.core import sqnr as signal_to_noise
from qtool.evaluation.restored_model import restore
from qtool.planning.plan import Execution

WIDTH, WIDE = 24, 60.0
STEP = "output-equalization"


class Block(nn.Module):
    """A residual stream with a wide channel, and a norm behind it."""

    def __init__(self, wide: float = WIDE) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 7)
        with torch.no_grad():
            self.down.bias[3] = wide
            self.last.weight[3] /= max(wide, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        h = h + self.down(torch.relu(self.up(h)))
        scores: torch.Tensor = self.head(self.last(h))
        return scores


def batch(seed: int, samples: int = 16) -> torch.Tensor:
    return torch.randn(samples, 5, WIDTH, generator=torch.Generator().manual_seed(seed))


@functools.cache
def captured(wide: float = WIDE) -> qtool.Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Block(wide).eval(), batch(0))


@functools.cache
def quantized(steps: tuple[str, ...] = (STEP,), target: str = "tflite") -> QuantizedModel:
    return qtool.quantize(captured(), [batch(1)], target=target, recover=list(steps))


def sqnr(model: QuantizedModel) -> float:
    x = batch(9)
    with torch.no_grad():
        exact = captured().graph.module(x)
        value = signal_to_noise.sqnr(exact.numpy(), model(x).numpy())
    assert value is not None
    return value


def test_wide_channels_of_a_result_cost_the_others_nothing() -> None:
    assert sqnr(quantized()) > sqnr(quantized(())) + 8


def test_floats_restore_the_range() -> None:
    plan = quantized().plan
    assert [(r.name, r.count) for r in plan.rewrites] == [(STEP, 1)]
    product, layer = plan.decision("down.restored"), plan.decision("down")
    assert product.execution is Execution.FLOAT
    assert layer.execution is Execution.INTEGER


def test_a_reader_of_the_file_repeats_it(tmp_path: Path) -> None:
    model, path = quantized(), tmp_path / "m.tflite"
    model.export(path, verify=False)
    found = restore(path, captured(), model.sample)
    with torch.no_grad():
        assert torch.equal(found(batch(2)), model(batch(2)))


def test_every_code_is_that_of_litert(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    result = quantized().export(tmp_path / "m.tflite")
    assert result.parity.passed


@pytest.mark.parametrize(
    ("wide", "samples", "applied"), [(WIDE, 16, True), (WIDE, 4, False), (0, 16, False)]
)
def test_it_acts_on_wide_channels_that_enough_rows_show(
    wide: float, samples: int, applied: bool
) -> None:
    model = qtool.quantize(captured(wide), [batch(1, samples)], target="tflite", recover=[STEP])
    assert [r.name for r in model.plan.rewrites] == [STEP] * applied


def test_kernels_that_return_floats_need_it_not() -> None:
    assert not quantized(target="onnxruntime").plan.rewrites


class Other(nn.Module):
    """Results that an integer layer, the output and a float operator with another layout read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        moved = self.c(x).reshape(-1, 5 * WIDTH // 2, 2)
        return self.b(self.a(x)), nn.functional.layer_norm(moved, [2])


def test_layers_whose_codes_something_else_reads_are_left() -> None:
    model = qtool.capture_model(Other().eval(), batch(0))
    graph, _ = model.for_target("tflite")
    assert equalizable_layers(graph.graph, model.plan(target="tflite")) == []
    graph, _ = captured().for_target("tflite")
    assert {G.name_of(n) for n in G.calls(graph.graph)} > {"down", "head"}
    assert equalizable_layers(graph.graph, captured().plan(target="tflite")) == ["down"]
