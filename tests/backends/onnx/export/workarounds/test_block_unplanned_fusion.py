"""ONNX Runtime runs what the plan says, also where it would rather not."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.backends.onnxruntime.session import optimised_graph
from qtool.frontends.captured_model import Captured


class Net(nn.Module):
    """One of everything that the runtime fuses between codes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.join, self.last = nn.Conv2d(32, 16, 1), nn.Conv2d(16, 16, 1)
        self.head, self.scores = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        y = self.second(x)
        z = (x + y) * torch.sigmoid(y)
        v = F.leaky_relu(self.join(torch.cat([z, y], 1)), 0.1)
        v = torch.relu(self.last(v))
        v = F.adaptive_avg_pool2d(v, 1).flatten(1)
        return self.scores(torch.relu(self.head(v)))


NODES = [
    ("second", "join", "adaptive_avg_pool2d"),
    ("add", "cat", "last"),
    ("mul", "leaky_relu", "head"),
    ("sigmoid",),
]
"""Nodes, none next to another: all around each computes in integers."""
X = torch.randn(8, 4, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def captured() -> Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Net().eval(), X)


@pytest.mark.parametrize("names", NODES)
def test_what_a_recipe_leaves_in_float_runs_in_float(
    captured: Captured, names: tuple[str, ...], tmp_path: Path
) -> None:
    recipe = [{"select": name, "as": "float"} for name in names]
    model = qtool.quantize(captured, [X], recipe=recipe, accuracy="fast")
    found = model.export(tmp_path / "m.onnx")
    assert found.exactness.exact, str(found.exactness)
    nodes = optimised_graph(tmp_path / "m.onnx").graph.node
    assert not [n for n in nodes if n.name in names and n.op_type.startswith("Q")]
    rows = [r for r in found.coverage.rows if r.name in names]
    assert not [r for r in rows if r.integer or r.kernel.startswith("Q")]


class Clamped(nn.Module):
    """A layer whose clamped result is read as float."""

    def __init__(self, clamp) -> None:
        super().__init__()
        self.layer, self.norm, self.clamp = nn.Linear(16, 16), nn.LayerNorm(16), clamp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.clamp(self.layer(x)))


@pytest.mark.parametrize(
    ("clamp", "sizes"),
    [
        (torch.relu, (8, 16)),
        (F.relu6, (4, 5, 16)),
        (lambda x: x.clamp(-1, 1), (8, 16)),
        (torch.relu, (4, 5, 16)),
    ],
)
def test_a_clamp_does_not_pull_its_layer_into_float(clamp, sizes, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(*sizes)
    found = qtool.quantize(Clamped(clamp).eval(), [x], accuracy="fast").export(tmp_path / "m.onnx")
    assert found.coverage.share == 1.0
    assert found.exactness.exact
