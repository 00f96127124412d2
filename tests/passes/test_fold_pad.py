"""Pads become part of what reads them."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.frontends.captured_model import capture_model
from qtool.passes.canonicalize import canonicalize
from qtool.passes.fold_batch_norm import fold_batch_norm
from qtool.passes.pads import fold_pad
from tests.backends.onnx.export.networks import Applied
from tests.named_cases import cases, named_cases
from tests.passes.differential import Function, rewritten

aten = torch.ops.aten
X = torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(0)) - 5  # all below zero


def pooled(widths: list[int], kernel: int, stride: int, fill: float, dilation: int = 1) -> Applied:
    return Applied(
        lambda m, x: F.max_pool2d(F.pad(x, widths, value=fill), kernel, stride, 0, dilation)
    )


@pytest.mark.parametrize("fill", [-torch.inf, -1e30])
@cases(
    "widths, kernel, stride",
    ([1, 1, 1, 1], 3, 2),
    ([0, 1, 0, 1], 3, 2),
    ([0, 1, 0, 1], 2, 1),
    ([1, 0, 1, 0], 2, 1),
    ([2, 1, 1, 2], 3, 1),
    ([0, 2, 2, 0], 5, 3),
    ([2, 2, 2, 2], 3, 1),
)
def test_the_pad_is_gone_and_the_pool_gives_the_same(
    widths: list[int], kernel: int, stride: int, fill: float
) -> None:
    model = pooled(widths, kernel, stride, fill).eval()
    graph = capture_model(model, X).graph
    assert not any(n.target is aten.constant_pad_nd.default for n in G.calls(graph.graph))
    assert torch.equal(graph.module(X), model(X))
    assert torch.equal(graph.module(X[:1]), model(X[:1]))


def test_an_image_smaller_than_its_window() -> None:
    model, one = pooled([0, 1, 0, 2], 2, 3, -torch.inf, 1).eval(), X[:, :, :1, :1]
    graph = capture_model(model, one).graph
    assert torch.equal(graph.module(one), model(one))


def test_where_the_pool_can_say_it_nothing_else_is_left() -> None:
    graph = capture_model(pooled([0, 1, 1, 1], 3, 2, -torch.inf).eval(), X).graph
    assert [n.target for n in G.calls(graph.graph)][-1] is torch_ops.max_pool


@pytest.mark.parametrize(
    ("widths", "kernel", "dilation", "fill"),
    [([1, 1, 1, 1], 3, 1, 0.0), ([2, 2, 2, 2], 2, 3, -torch.inf), ([3, 3, 0, 0], 2, 1, -torch.inf)],
)
def test_what_decides_a_maximum_stays(
    widths: list[int], kernel: int, dilation: int, fill: float
) -> None:
    model = pooled(widths, kernel, 1, fill, dilation).eval()
    graph = capture_model(model, X).graph
    assert any(n.target is aten.constant_pad_nd.default for n in G.calls(graph.graph))
    assert torch.equal(graph.module(X), model(X))


IMAGE = (2, 3, 8, 7)


def conv(**options: object) -> nn.Conv2d:
    return nn.Conv2d(3, 4, 3, **options)


def _read_twice(x: torch.Tensor, conv: nn.Module) -> torch.Tensor:
    y = F.pad(x, (1, 1, 1, 1))
    return conv(y) + y.mean()


@named_cases(
    "model, shape, pads",
    ("symmetric", lambda: nn.Sequential(nn.ZeroPad2d(2), conv()), IMAGE, [2, 2, 2, 2]),
    (
        "more below than above",
        lambda: nn.Sequential(nn.ZeroPad2d((1, 1, 4, 5)), conv()),
        IMAGE,
        [4, 1, 5, 1],
    ),
    (
        "on top of the padding of the conv",
        lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 2)), conv(stride=2, padding=1)),
        IMAGE,
        [1, 1, 3, 2],
    ),
    (
        "two paddings",
        lambda: nn.Sequential(nn.ZeroPad2d((1, 0, 0, 0)), nn.ZeroPad2d((0, 0, 2, 1)), conv()),
        IMAGE,
        [2, 1, 1, 0],
    ),
    (
        "one dimension of two",
        lambda: Function(lambda x, c: c(F.pad(x, (2, 1))), conv()),
        IMAGE,
        [0, 2, 0, 1],
    ),
    (
        "before a folded norm",
        lambda: nn.Sequential(nn.ConstantPad2d(1, 0.0), conv(), nn.BatchNorm2d(4)),
        IMAGE,
        [1, 1, 1, 1],
    ),
    (
        "one-dimensional",
        lambda: nn.Sequential(nn.ConstantPad1d((3, 1), 0.0), nn.Conv1d(3, 4, 3)),
        (2, 3, 8),
        [3, 1],
    ),
    (
        "three-dimensional",
        lambda: nn.Sequential(nn.ConstantPad3d((1, 2, 3, 0, 0, 1), 0.0), nn.Conv3d(3, 4, 3)),
        (2, 3, 4, 4, 4),
        [0, 3, 1, 1, 0, 2],
    ),
)
def test_folded(model: Callable[[], nn.Module], shape: tuple[int, ...], pads: list[int]) -> None:
    result = rewritten(model(), shape, passes=(canonicalize, fold_batch_norm, fold_pad))
    assert result.counts["fold_pad"] >= 1
    assert result.ops() == ["conv"]
    (output,) = G.output_nodes(result.graph.graph)
    assert list(output.args[4]) == pads


@named_cases(
    "model",
    ("another value", lambda: nn.Sequential(nn.ConstantPad2d(1, 0.5), conv())),
    ("reflected", lambda: nn.Sequential(nn.ReflectionPad2d(1), conv())),
    ("cropped", lambda: nn.Sequential(nn.ZeroPad2d(-1), conv())),
    ("read by another node", lambda: Function(_read_twice, conv())),
    (
        "over channels",
        lambda: Function(lambda x, c: c(F.pad(x, (0, 0, 0, 0, 1, 0))), nn.Conv2d(4, 4, 3)),
    ),
    ("a relu between", lambda: nn.Sequential(nn.ZeroPad2d(1), nn.ReLU(), conv())),
    ("transposed", lambda: nn.Sequential(nn.ZeroPad2d(1), nn.ConvTranspose2d(3, 4, 3))),
)
def test_left(model: Callable[[], nn.Module]) -> None:
    result = rewritten(model(), IMAGE, passes=(canonicalize, fold_pad))
    assert result.counts["fold_pad"] == 0
    assert any("pad" in op for op in result.ops())
