"""Zero padding goes into the convolution behind it; any other padding stays."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.passes.canonicalize import canonicalize
from qtool.passes.fold_batch_norm import fold_batch_norm
from qtool.passes.fold_pad import fold_pad
from tests.named_cases import named_cases
from tests.passes.differential import Function, rewritten

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
