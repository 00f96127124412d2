"""Float parts of a model: run by the runtime, each as one graph, with the fusions it has there."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnxruntime import planned_export
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.session import optimised_graph
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes

WIDTH, HEADS = 32, 4


class Encoder(nn.Module):
    """Two layers as BERT has them: attention, residual adds, norms behind them, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x.mean(1)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS) + mask[:, None, None]
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = self.first(x + self.out(mixed))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


def batch(samples: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, length, WIDTH, generator=generator)
    return x, torch.where(torch.arange(length) < length - 2, 0.0, -1e4).expand(samples, -1).clone()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    dynamic = {n: {0: "batch", 1: "sequence"} for n in ("x", "mask")}
    captured = qtool.capture_model(Encoder().eval(), batch(8, 12), dynamic)
    path = tmp_path_factory.mktemp("islands") / "encoder.onnx"
    quantized = qtool.quantize(captured, [batch(8, 12)])
    with pytest.MonkeyPatch.context() as patch:  # additions that the runtime fuses with norms
        patch.setattr(planned_export, "ONNX_WORKAROUNDS", ())
        quantized.export(path)
    return path


def test_fused_float_kernels_round_alike(file: Path) -> None:
    kernels = {n.op_type for n in optimised_graph(file).graph.node}
    assert "SkipLayerNormalization" in kernels  # an add and a norm in one
    sizes = [batch(1, 7), batch(5, 12), batch(3, 20)]
    found = compare_codes(file, [[t.numpy() for t in s] for s in sizes])
    assert found.float_steps
    assert found.exact, str(found)


def test_shapes_are_what_fusion_hangs_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnnxModel, "value_info", {})
    found = compare_codes(file, [[t.numpy() for t in batch(5, 12)]])
    assert not found.exact


def test_an_island_lies_between_integer_steps(file: Path) -> None:
    program = lower(file)
    islands = [s for s in program.instructions if s.kind == "float"]
    nodes = len(onnx.load(file).graph.node)
    assert 2 < len(islands) < 12
    assert sum(s.node_count for s in islands) == program.float_nodes < nodes
    assert any(len(s.outputs) > 1 for s in islands)  # a norm, and what the residual reads
    made: set[str] = {*program.inputs, *program.constants}
    for step in program.instructions:
        assert made.issuperset(step.inputs)
        made |= set(step.outputs)
