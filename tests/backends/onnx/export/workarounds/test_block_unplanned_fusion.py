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
    "second",
    "add",
    "mul",
    "sigmoid",
    "cat",
    "join",
    "leaky_relu",
    "last",
    "adaptive_avg_pool2d",
    "head",
]
X = torch.randn(8, 4, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def captured() -> Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Net().eval(), X)


@pytest.mark.parametrize("name", NODES)
def test_what_a_recipe_leaves_in_float_runs_in_float(
    captured: Captured, name: str, tmp_path: Path
) -> None:
    model = qtool.quantize(captured, [X], recipe=[{"select": name, "as": "float"}], accuracy="fast")
    found = model.export(tmp_path / "m.onnx")
    assert found is not None
    assert found.exactness is not None
    assert found.exactness.exact, str(found.exactness)
    kernels = [n.op_type for n in optimised_graph(tmp_path / "m.onnx").graph.node if n.name == name]
    assert not [k for k in kernels if k.startswith("Q")]
    row = next((r for r in found.coverage.rows if r.name == name), None)
    assert row is None or not (row.integer or row.kernel.startswith("Q"))


class Clamped(nn.Module):
    """A layer whose clamped result is read as float."""

    def __init__(self, clamp) -> None:
        super().__init__()
        self.layer, self.norm, self.clamp = nn.Linear(16, 16), nn.LayerNorm(16), clamp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.clamp(self.layer(x)))


@pytest.mark.parametrize("clamp", [torch.relu, F.relu6, lambda x: x.clamp(-1, 1)])
@pytest.mark.parametrize("sizes", [(8, 16), (4, 5, 16)])
def test_a_clamp_does_not_pull_its_layer_into_float(clamp, sizes, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(*sizes)
    found = qtool.quantize(Clamped(clamp).eval(), [x], accuracy="fast").export(tmp_path / "m.onnx")
    assert found is not None
    assert found.coverage.share == 1.0
    assert found.exactness is not None
    assert found.exactness.exact
