"""Zero padding goes into the convolution behind it; any other padding stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.passes.canonicalize import canonicalize
from qtool.passes.fold_batch_norm import fold_batch_norm
from qtool.passes.fold_pad import fold_pad
from tests.passes.differential import Function, rewritten

IMAGE = (2, 3, 8, 7)


def conv(**options: object) -> nn.Conv2d:
    return nn.Conv2d(3, 4, 3, **options)


def _read_twice(x: torch.Tensor, conv: nn.Module) -> torch.Tensor:
    y = F.pad(x, (1, 1, 1, 1))
    return conv(y) + y.mean()


@pytest.mark.parametrize(
    ("model", "shape", "pads"),
    [
        pytest.param(
            lambda: nn.Sequential(nn.ZeroPad2d(2), conv()), IMAGE, [2, 2, 2, 2], id="symmetric"
        ),
        pytest.param(
            lambda: nn.Sequential(nn.ZeroPad2d((1, 1, 4, 5)), conv()),
            IMAGE,
            [4, 1, 5, 1],
            id="more below than above",
        ),
        pytest.param(
            lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 2)), conv(stride=2, padding=1)),
            IMAGE,
            [1, 1, 3, 2],
            id="on top of the padding of the conv",
        ),
        pytest.param(
            lambda: nn.Sequential(nn.ZeroPad2d((1, 0, 0, 0)), nn.ZeroPad2d((0, 0, 2, 1)), conv()),
            IMAGE,
            [2, 1, 1, 0],
            id="two paddings",
        ),
        pytest.param(
            lambda: Function(lambda x, c: c(F.pad(x, (2, 1))), conv()),
            IMAGE,
            [0, 2, 0, 1],
            id="one dimension of two",
        ),
        pytest.param(
            lambda: nn.Sequential(nn.ConstantPad2d(1, 0.0), conv(), nn.BatchNorm2d(4)),
            IMAGE,
            [1, 1, 1, 1],
            id="before a folded norm",
        ),
        pytest.param(
            lambda: nn.Sequential(nn.ConstantPad1d((3, 1), 0.0), nn.Conv1d(3, 4, 3)),
            (2, 3, 8),
            [3, 1],
            id="one-dimensional",
        ),
        pytest.param(
            lambda: nn.Sequential(nn.ConstantPad3d((1, 2, 3, 0, 0, 1), 0.0), nn.Conv3d(3, 4, 3)),
            (2, 3, 4, 4, 4),
            [0, 3, 1, 1, 0, 2],
            id="three-dimensional",
        ),
    ],
)
def test_folded(model: Callable[[], nn.Module], shape: tuple[int, ...], pads: list[int]) -> None:
    result = rewritten(model(), shape, passes=(canonicalize, fold_batch_norm, fold_pad))
    assert result.counts["fold_pad"] >= 1
    assert result.ops() == ["conv"]
    (output,) = G.output_nodes(result.graph.graph)
    assert list(output.args[4]) == pads


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: nn.Sequential(nn.ConstantPad2d(1, 0.5), conv()), id="another value"),
        pytest.param(lambda: nn.Sequential(nn.ReflectionPad2d(1), conv()), id="reflected"),
        pytest.param(lambda: nn.Sequential(nn.ZeroPad2d(-1), conv()), id="cropped"),
        pytest.param(lambda: Function(_read_twice, conv()), id="read by another node"),
        pytest.param(
            lambda: Function(lambda x, c: c(F.pad(x, (0, 0, 0, 0, 1, 0))), nn.Conv2d(4, 4, 3)),
            id="over channels",
        ),
        pytest.param(
            lambda: nn.Sequential(nn.ZeroPad2d(1), nn.ReLU(), conv()), id="a relu between"
        ),
        pytest.param(
            lambda: nn.Sequential(nn.ZeroPad2d(1), nn.ConvTranspose2d(3, 4, 3)), id="transposed"
        ),
    ],
)
def test_left(model: Callable[[], nn.Module]) -> None:
    result = rewritten(model(), IMAGE, passes=(canonicalize, fold_pad))
    assert result.counts["fold_pad"] == 0
    assert any("pad" in op for op in result.ops())
