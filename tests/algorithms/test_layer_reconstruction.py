"""Layers in order, each for its own target and what the tensor it is added to lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms import layer_reconstruction
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph.executor import Executor
from tests.algorithms.weight_rounding.test_layer_step import captured, smooth

ADD, RELU = torch.ops.aten.add.Tensor, torch.ops.aten.relu.default


class Residual(nn.Module):
    """A sum of a tensor and of what a layer makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.stem(x))
        return self.head(torch.relu(h + self.body(h)))


@pytest.mark.parametrize("step", ["bias-correction", "gptq"])
def test_a_layer_repairs_the_tensor_that_its_result_is_added_to(step: str) -> None:
    """The stem is right on the mean before its ReLU, and off behind it: the sum is to be right."""
    torch.manual_seed(0)
    recipe = [{"select": "stem", "weights": "int4"}]
    net = qtool.capture_model(Residual().eval(), smooth(1)[:8])
    calibration = qtool.calibrate(net, smooth(1).split(16), recipe=recipe, recover=[step])
    model = qtool.convert(net, calibration)
    (learned,) = calibration.kept_samples.batches(96)
    off: dict[Any, float] = {}
    runs = [Executor(net.graph), Executor(replace(model.graph, module=model.module))]
    values = [r.run(model.graph.call_of(learned), r.points) for r in runs]
    for node in G.calls(net.graph.graph):
        exact, coded = (v[r.indices[G.name_of(node)]] for r, v in zip(runs, values, strict=True))
        if node.target in (ADD, RELU) and node.target not in off:
            off[node.target] = float((exact - coded).mean((0, 2, 3)).abs().max())
    assert off[ADD] < 0.2 * off[RELU]


def test_as_many_samples_as_can_be_held_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = layer_reconstruction.run_by_levels

    def counted(executor: Executor, batches: list[Batch], *rest: Any) -> None:
        seen.append(sum(b.size for b in batches))
        real(executor, batches, *rest)

    monkeypatch.setattr(layer_reconstruction, "run_by_levels", counted)
    for elements in (1 << 27, 2 * 24 * 12 * 12 * 20, 1):  # 24 channels are the most at once
        monkeypatch.setattr("qtool.algorithms.layer_reconstruction.ELEMENTS", elements)
        model = qtool.quantize(captured(), smooth(1).split(16), recover=["bias-correction"])
        assert not any("kept no samples" in note for note in model.notes)
    assert 50 <= seen[0] <= 80
    assert 10 <= seen[1] <= 20
    assert 1 <= seen[2] <= 2, "as many as the graph takes at least"
