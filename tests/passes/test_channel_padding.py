"""Channels of zeros around depthwise convolutions: where they go, and that they change nothing."""

import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.core import graph as G
from qtool.passes.channel_sets import channel_sets
from qtool.passes.pads import widen_channels
from tests.named_cases import named_cases
from tests.passes.differential import Function, rewritten

IMAGE = (2, 5, 8, 8)
WIDE = 16


class Block(nn.Module):
    """A narrow convolution, a depthwise one, and what `between` makes of it, then a dense layer."""

    def __init__(self, between: Callable[..., torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(5, 6, 1)
        self.deep = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.last = nn.Conv2d(6, 4, 1)
        self.between, self.parts = between, nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.between(self.deep(F.relu(self.first(x))), *self.parts)
        return self.last(y) if y.dim() == 4 else y


class Stored(nn.Module):
    """A constant with a value for each channel, stored."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.linspace(-1, 2, 6).view(1, 6, 1, 1))

    def forward(self) -> torch.Tensor:
        return self.values


def excite(y: torch.Tensor, down: nn.Module, up: nn.Module) -> torch.Tensor:
    return y * torch.sigmoid(up(F.silu(down(y.mean((2, 3), keepdim=True)))))


def excite_by_linears(y: torch.Tensor, down: nn.Module, up: nn.Module) -> torch.Tensor:
    gate = F.hardsigmoid(up(F.relu(down(F.adaptive_avg_pool2d(y, 1).flatten(1)))))
    return y * gate.view(-1, 6, 1, 1)


def through(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], nn.Module]:
    return lambda: Block(function)


def block(between: Callable[..., torch.Tensor], *parts: nn.Module) -> Callable[[], nn.Module]:
    return lambda: Block(between, *parts)


def widths(model: nn.Module) -> list[int]:
    """The channels of the sets that may be widened."""
    return sorted(s.channels for s in channel_sets(rewritten(model, IMAGE).graph.graph))


WIDENED = (
    ("plain", through(lambda y: y)),
    ("hardswish", through(F.hardswish)),
    ("pools", through(lambda y: F.avg_pool2d(F.max_pool2d(y, 3, 1, 1), 2))),
    ("edges of zeros", through(lambda y: F.pad(y, (1, 0, 2, 1)))),
    ("constants", block(lambda y, stored: F.tanh(stored()[0] * F.tanh(y) + 2.0), Stored())),
    ("constant in front", block(lambda y, stored: stored() - F.gelu(y), Stored())),
    ("excite", block(excite, nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1))),
    ("excite, linear", block(excite_by_linears, nn.Linear(6, 2), nn.Linear(2, 6))),
    ("residual", block(lambda y, again: y + F.relu(again(y)), nn.Conv2d(6, 6, 1))),
    ("twice", block(lambda y, deep: deep(y), nn.Conv2d(6, 6, 3, 2, 1, groups=6, bias=False))),
    ("head", block(lambda y, head: head(y.mean((2, 3))), nn.Linear(6, 3))),
)
FIXED = (
    ("an output", lambda: nn.Sequential(nn.Conv2d(5, 6, 1), nn.Conv2d(6, 6, 3, groups=6))),
    ("an input", lambda: nn.Sequential(nn.Conv2d(5, 5, 3, groups=5), nn.Conv2d(5, 4, 1))),
    ("concat", through(lambda y: torch.cat([y, y[:, :0]], 1))),
    ("made at run time", through(lambda y: F.relu(y) * torch.arange(6.0).view(6, 1, 1))),
    ("a part", through(lambda y: torch.cat([y[:, 3:], y[:, :3]], 1))),
    ("pixels", through(lambda y: y.flatten(1).sum(1))),
    ("softmax", through(lambda y: y.softmax(1))),
    ("division", through(lambda y: y / (y * y))),
    ("norm of the sample", block(lambda y, norm: norm(y), nn.GroupNorm(1, 6))),
    ("groups", block(lambda y, groups: groups(y), nn.Conv2d(6, 6, 1, groups=2))),
    ("channels first to last", through(lambda y: y.transpose(1, 2).contiguous().transpose(1, 2))),
    ("mean of channels", through(lambda y: y - y.mean(1, keepdim=True))),
    (
        "computed weights",
        through(lambda y: F.conv2d(y, y[:1].mean((2, 3), True).expand(6, 6, 1, 1))),
    ),
)


@named_cases("model", *WIDENED)
def test_function_is_the_same(model: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    result = rewritten(net := model(), IMAGE)
    module, x = result.graph.module, torch.randn(3, *IMAGE[1:])
    before = module(x)
    names = {G.name_of(n): WIDE for s in channel_sets(module.graph) for n in s.depthwise}
    assert names, "nothing to widen"
    widen_channels(module, names)
    module.recompile()
    shapes = [G.shape(n)[1] for s in channel_sets(module.graph) for n in s.nodes]
    assert set(shapes) == {WIDE}
    torch.testing.assert_close(module(x), before)
    torch.testing.assert_close(net.eval()(x), before)


@named_cases("model", *FIXED)
def test_what_others_read_stays(model: Callable[[], nn.Module]) -> None:
    assert widths(model()) == []


def test_a_network_is_padded_as_far_as_it_can_be() -> None:
    both = nn.Sequential(Block(F.relu), nn.Conv2d(4, 5, 1), Block(lambda y: y.softmax(1)))
    assert widths(both) == [6]
    assert widths(Function(lambda x, a, b: a(x) + b(x), Block(F.relu), Block(F.relu))) == [6, 6]


INTEGER = {"slow_layers": "integer"}


def _quantized() -> qtool.QuantizedModel:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 24, 1),
        nn.Hardswish(),
        nn.Conv2d(24, 24, 3, 1, 1, groups=24),
        nn.Hardswish(),
        nn.Conv2d(24, 16, 1),
    )
    data = [torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1)) for _ in range(4)]
    return qtool.quantize(net.eval(), data, accuracy="fast", recipe=INTEGER)


def test_bits_of_the_file_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    padded = _quantized()
    (deep,) = (d for d in padded.plan.nodes if d.channels)
    assert (deep.op, deep.channels) == ("conv", 32)
    assert "32 channels in the file" in str(padded.plan)
    padded.export(tmp_path / "padded.onnx")
    lowering = importlib.import_module("qtool.backends.onnx.export.lower_to_qdq")
    monkeypatch.setattr(lowering, "widen_channels", lambda module, widths: None)
    _quantized().export(tmp_path / "plain.onnx")
    x = np.random.default_rng(0).standard_normal((5, 3, 32, 32)).astype(np.float32)
    outputs = {n: run(session(tmp_path / f"{n}.onnx"), [x]) for n in ("padded", "plain")}
    assert np.array_equal(*(o[0] for o in outputs.values()))
