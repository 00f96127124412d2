"""Networks that were refused once, or wrong: each converts, exactly, and near the float model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.backends.onnxruntime.session import run, session
from tests.models.arms import Arms


class Net(nn.Module):
    """A convolution, a norm with statistics and what a function makes of them."""

    def __init__(self, forward: Callable[..., Any], kind: str = "conv") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.run = forward
        if kind == "conv":
            self.c, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        else:
            self.c, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.b.weight.data.uniform_(0.5, 1.5)
        self.b.running_var.uniform_(0.5, 2)
        self.b.running_mean.normal_()
        self.register_buffer("anchors", torch.randn(5, 2))

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def pooled(m: Net, x: torch.Tensor) -> Any:
    y = m.c(x)
    return y.clamp(0, 2), F.adaptive_max_pool2d(y, (1, 3))


def twice_joined(m: Net, x: torch.Tensor) -> Any:
    b = torch.cat([m.c(x), m.c(x)], 1)
    return torch.cat([b, b], 1)


def joined(m: Net, x: torch.Tensor) -> Any:
    a = m.c(x)
    b = torch.cat([a, a], 1)
    return torch.cat([b, b], 1)


def one_joined(m: Net, x: torch.Tensor) -> Any:
    y = m.c(x)
    return y, torch.cat([F.max_pool2d(y, 7)], 1)


IMAGES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "adaptive pool of one row": (pooled, (8, 4, 13, 7)),
    "concat of one": (one_joined, (8, 4, 14, 14)),
    "concat of a concat, twice": (joined, (8, 4, 9, 9)),
    "concat of concats": (twice_joined, (8, 4, 9, 9)),
    "concat of itself and more": (
        lambda m, x: torch.cat([(b := torch.cat([m.c(x), x], 1)), b * b, b], 1),
        (8, 4, 9, 9),
    ),
    "an output that is constant": (lambda m, x: (m.c(x), torch.arange(3.0)), (8, 4, 9, 9)),
    "an output that is stored": (lambda m, x: (m.c(x), m.anchors), (8, 4, 9, 9)),
    "nearest to 7": (lambda m, x: F.interpolate(m.c(x), size=(7, 7)), (8, 4, 6, 6)),
    "nearest to 5": (lambda m, x: m.c(F.interpolate(m.c(x), size=(5, 5))), (8, 4, 3, 3)),
    "bilinear to 7": (
        lambda m, x: m.c(F.interpolate(m.c(x), size=(7, 7), mode="bilinear")),
        (8, 4, 6, 6),
    ),
    "a squeeze of nothing": (lambda m, x: m.c(x).squeeze(1), (8, 4, 6, 6)),
    "a window that begins outside": (
        lambda m, x: m.c(F.max_pool2d(m.c(x), 2, 3, ceil_mode=True)),
        (8, 4, 9, 9),
    ),
    "a norm behind one use": (lambda m, x: (m.b(m.c(x)), m.c(F.relu(x))), (8, 4, 8, 8)),
    "a norm behind the first": (lambda m, x: m.c(m.b(m.c(x))), (8, 4, 8, 8)),
    "a norm behind the second": (lambda m, x: m.b(m.c(F.relu(m.c(x)))), (8, 4, 8, 8)),
    "sizes as numbers": (
        lambda m, x: m.c(x) * x.shape[0] + (x.shape[0] - m.c(x)) / (x.shape[0] % 3 + 1),
        (8, 4, 6, 6),
    ),
    "the value of a sum": (lambda m, x: m.c(m.c(x) * (x * x).sum().item()), (8, 4, 6, 6)),
    "a decision by a size": (
        lambda m, x: torch.where(m.c(x) > x.shape[0], m.c(x), 0.0) + m.c(x).amax() + m.c(x),
        (8, 4, 6, 6),
    ),
    "a number times alpha": (lambda m, x: torch.add(m.c(x), 1, alpha=2), (8, 4, 6, 6)),
    "chunks of the batch": (lambda m, x: torch.cat([m.c(y) for y in x.chunk(2)]), (8, 4, 6, 6)),
    "a layer of no samples": (lambda m, x: (m.c(x), m.c(m.c(x)[:0])), (8, 4, 6, 6)),
    "twice one name": (lambda m, x: F.softplus(F.threshold(m.c(x), 0.1, 0.0)), (8, 4, 6, 6)),
}
ROWS = {
    "a norm behind one use": lambda m, x: (m.b(m.c(x)), m.c(F.relu(x))),
    "a norm behind the first": lambda m, x: m.c(m.b(m.c(x))),
    "a product of two vectors": lambda m, x: m.c(x) + torch.dot(m.c(x).sum(0), m.c(x).mean(0)),
    "one row": lambda m, x: m.c(x) + m.c(x[0]),
}
BY_SHAPE: dict[tuple[int, ...], dict[str, Net]] = {(32, 4): {}}
for _name, (_function, _shape) in IMAGES.items():
    BY_SHAPE.setdefault(_shape, {})[_name.replace(" ", "_")] = Net(_function)
for _name, _function in ROWS.items():
    BY_SHAPE[32, 4][_name.replace(" ", "_")] = Net(_function, "linear")


@pytest.mark.parametrize("shape", BY_SHAPE, ids=str)
def test_converts_exactly(shape: tuple[int, ...], tmp_path: Path) -> None:
    """All networks of a shape, in one file."""
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(shape, generator=generator) for _ in range(2)]
    file = tmp_path / "net.onnx"
    result = qtool.quantize(Arms(BY_SHAPE[shape]).eval(), data, accuracy="fast").export(file)
    assert result.passed
    assert result.exactness.exact
    assert result.fidelity.worst > 20
    assert qtool.verify(file, [torch.randn(shape, generator=generator)]).exact


class Padded(nn.Module):
    """All below zero where the pool looks, so that a pad of zeros wins at the border."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.c, self.norm = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)
        self.last = nn.Linear(4, 3)
        self.c.bias.data.sub_(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(F.pad(F.gelu(self.c(x)) + self.c(x), (1, 1, 1, 1)), 3, 2)
        return self.last(self.norm(y).mean((2, 3)))


def test_a_pad_of_zeros_is_no_padding_of_a_max_pool(tmp_path: Path) -> None:
    x = torch.randn(4, 3, 11, 11)
    captured = qtool.capture_model(Padded().eval(), x)
    plain = captured.export_float(tmp_path / "float.onnx")
    assert {n.op_type for n in onnx.load(plain).graph.node} >= {"Pad", "MaxPool"}
    with torch.no_grad():
        expected = Padded().eval()(x).numpy()
    assert run(session(plain), [x.numpy()])[0] == pytest.approx(expected, abs=1e-4)
    recipe = [{"select": "c", "as": "float"}]
    quantized = qtool.quantize(captured, [x], recipe=recipe, accuracy="fast")
    result = quantized.export(tmp_path / "int8.onnx")
    assert result.parity.optimised.worst < 1  # nothing integer lies before the pool


class Edges(nn.Module):
    """Each node looks at its neighbours, and divides by what it finds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own, self.sent, self.last = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        sent = torch.relu(self.sent(x))[edges[0]]
        found = torch.zeros_like(self.own(x)).index_add(0, edges[1], sent)
        return self.last(self.own(x) + found / (1 + found.abs().mean(-1, keepdim=True)))


@pytest.mark.parametrize("nodes", [6, 70])
def test_edges_count_all_nodes(nodes: int, tmp_path: Path) -> None:
    """No check takes fewer nodes than the edges speak of."""
    last = nodes - 1
    edges = torch.stack([torch.tensor([last, 0, 1, last]), torch.tensor([0, last, 2, 1])])
    dynamic = {"x": {0: "nodes"}, "edges": {1: "edges"}}
    quantized = qtool.quantize(Edges().eval(), [(torch.randn(nodes, 4), edges)], dynamic=dynamic)
    found = quantized.export(tmp_path / "m.onnx")
    assert found.passed
    assert found.fidelity.worst > 20
