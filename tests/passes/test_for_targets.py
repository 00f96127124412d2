"""The rewrites that targets ask for: where they apply, where they may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.passes import CANONICAL, FOR_TARGETS
from qtool.planning.targets import TARGETS
from tests.passes.differential import Function, rewritten

IMAGE = (2, 4, 6, 6)


def of(function: Callable[..., object], *parts: nn.Module) -> Callable[[], nn.Module]:
    return lambda: Function(function, *parts)


def pool(*arguments: object, **options: object) -> Callable[[], nn.Module]:
    return lambda: nn.AvgPool2d(*arguments, **options)


def _shuffle(x: torch.Tensor, groups: int = 2, axes: tuple[int, int] = (1, 2)) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(*axes).reshape(n, c, h, w)


def _shuffled_rows(x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.view(n, c, 2, h // 2, w).transpose(2, 3).reshape(n, c, h, w)


def _shuffled_samples(x: torch.Tensor) -> torch.Tensor:
    """What a shuffle of channels looks like, across samples."""
    n, c, h, w = x.shape
    x = torch.cat([x, x])
    return x.view(n, 2, c, h, w).transpose(1, 2).reshape(2 * n, c, h, w)


def _tapped_shuffle(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    n, c, h, w = x.shape
    y = x.view(n, 2, c // 2, h, w)
    return y.transpose(1, 2).reshape(n, c, h, w), y


def behind_conv(activation: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(4, 4, 3), activation)


@pytest.mark.parametrize(
    ("name", "model", "count", "ops"),
    [
        pytest.param(
            "batch_norm_as_conv", lambda: nn.BatchNorm2d(4), 1, ["conv"], id="norm of an image"
        ),
        pytest.param(
            "batch_norm_as_conv",
            lambda: nn.BatchNorm2d(4, affine=False),
            1,
            ["conv"],
            id="norm, not affine",
        ),
        pytest.param(
            "batch_norm_as_conv",
            lambda: nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(4)),
            1,
            ["reshape", "conv"],
            id="norm of a signal",
        ),
        pytest.param(
            "batch_norm_as_conv",
            lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(144)),
            0,
            ["reshape", "batch_norm"],
            id="norm of vectors",
        ),
        pytest.param("average_pool_as_conv", pool(2), 1, ["conv"], id="pool"),
        pytest.param("average_pool_as_conv", pool((3, 2), 1), 1, ["conv"], id="pool, overlapping"),
        pytest.param("average_pool_as_conv", pool(3, 2, 1), 1, ["conv"], id="pool, padded"),
        pytest.param(
            "average_pool_as_conv",
            pool(3, 2, 1, count_include_pad=False),
            0,
            ["average_pool"],
            id="pool, padding that does not count",
        ),
        pytest.param(
            "average_pool_as_conv",
            pool(4, 2, 1, ceil_mode=True),
            1,
            ["conv"],
            id="pool, ceil_mode that changes nothing",
        ),
        pytest.param(
            "average_pool_as_conv",
            pool(3, 2, ceil_mode=True),
            0,
            ["average_pool"],
            id="pool, cut windows",
        ),
        pytest.param(
            "average_pool_as_conv",
            lambda: nn.Sequential(nn.Flatten(2), nn.AvgPool1d(2)),
            1,
            ["reshape", "conv"],
            id="pool of a signal",
        ),
        pytest.param(
            "average_pool_as_conv",
            pool(2, divisor_override=3),
            1,
            ["conv", "mul"],
            id="pool, other divisor",
        ),
        pytest.param("channel_shuffle", of(_shuffle), 1, ["index_select"], id="shuffle"),
        pytest.param(
            "channel_shuffle",
            of(lambda x: _shuffle(x, 4, (-4, -3))),
            1,
            ["index_select"],
            id="shuffle, axes from behind",
        ),
        pytest.param(
            "channel_shuffle",
            of(_shuffled_rows),
            0,
            ["reshape", "transpose", "reshape"],
            id="shuffle of rows",
        ),
        pytest.param(
            "channel_shuffle",
            of(_shuffled_samples),
            0,
            ["cat", "reshape", "transpose", "reshape"],
            id="shuffle of samples",
        ),
        pytest.param(
            "channel_shuffle",
            of(_tapped_shuffle),
            0,
            ["reshape", "transpose", "reshape"],
            id="shuffle with a second reader",
        ),
        pytest.param(
            "hard_swish",
            behind_conv(nn.Hardswish()),
            1,
            ["conv", "rescale", "add", "clamp", "mul"],
            id="hard-swish",
        ),
        pytest.param(
            "hard_swish",
            behind_conv(nn.Hardsigmoid()),
            1,
            ["conv", "rescale", "add", "clamp"],
            id="hard-sigmoid",
        ),
        pytest.param("hard_swish", nn.Hardswish, 0, ["hardswish"], id="hard-swish of the input"),
        pytest.param(
            "pad_channels",
            of(lambda x, c: c(x[:, :3]), nn.Conv2d(3, 16, 3)),
            0,
            ["slice", "conv"],
            id="three channels inside",
        ),
        pytest.param("pad_channels", lambda: nn.Conv2d(4, 16, 3), 0, ["conv"], id="four channels"),
        pytest.param(
            "hold_bias",
            lambda: nn.Linear(6, 3, bias=False),
            1,
            ["reshape", "linear", "reshape"],
            id="no bias",
        ),
        pytest.param(
            "hold_bias",
            of(lambda x, layer: F.linear(x, layer.weight, torch.zeros(3)), nn.Linear(6, 3)),
            1,
            ["reshape", "linear", "reshape"],
            id="a bias of zeros",
        ),
        pytest.param(
            "hold_bias",
            lambda: nn.Linear(6, 3),
            0,
            ["reshape", "linear", "reshape"],
            id="a bias",
        ),
        pytest.param(
            "hold_bias",
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3, bias=False)),
            0,
            ["reshape", "linear"],
            id="no reshape behind",
        ),
    ],
)
def test_rewrites(name: str, model: Callable[[], nn.Module], count: int, ops: list[str]) -> None:
    result = rewritten(model(), IMAGE, passes=[*CANONICAL, FOR_TARGETS[name]])
    assert result.counts[name] == count
    assert [op for op in result.ops() if op not in ("sym_size", "floordiv", "mul_1")] == ops


@pytest.mark.parametrize(
    ("conv", "count"),
    [
        pytest.param(lambda: nn.Conv2d(3, 16, 3), 1, id="colours"),
        pytest.param(lambda: nn.Conv1d(3, 16, 3, bias=False), 1, id="a signal"),
        pytest.param(lambda: nn.Conv2d(3, 8, 3), 0, id="few outputs"),
        pytest.param(lambda: nn.Conv2d(3, 48, 3, groups=3), 0, id="in groups"),
    ],
)
def test_pad_channels(conv: Callable[[], nn.Module], count: int) -> None:
    layer = conv()
    shape = (2, 3, *[6] * (layer.weight.dim() - 2))
    result = rewritten(layer, shape, passes=[*CANONICAL, FOR_TARGETS["pad_channels"]])
    assert result.counts["pad_channels"] == count
    assert result.ops() == [*["constant_pad_nd"] * count, "conv"]


@pytest.mark.parametrize(
    ("conv", "groups"),
    [
        pytest.param(
            lambda: nn.Conv2d(128, 64, 3, groups=32), 4, id="to 32 channels, where 64 are too many"
        ),
        pytest.param(lambda: nn.Conv2d(48, 48, (1, 3), 2, (0, 1), 2, groups=3), 1, id="to all"),
        pytest.param(lambda: nn.Conv2d(60, 20, 1, groups=5, bias=False), 5, id="a prime number"),
        pytest.param(lambda: nn.Conv2d(16, 32, 3, groups=16), 16, id="depthwise"),
        pytest.param(lambda: nn.Conv2d(98, 4, 1, groups=2), 2, id="wide"),
        pytest.param(lambda: nn.Conv1d(16, 16, 3, groups=4), 4, id="a signal"),
    ],
)
def test_merge_groups(conv: Callable[[], nn.Module], groups: int) -> None:
    layer = conv()
    shape = (2, layer.in_channels, *[6] * (layer.weight.dim() - 2))
    result = rewritten(layer, shape, passes=[*CANONICAL, FOR_TARGETS["merge_groups"]])
    assert result.counts["merge_groups"] == (groups < layer.groups)
    (node,) = G.calls(result.graph.graph)
    assert node.args[6] == groups


@pytest.mark.parametrize("name", TARGETS)
def test_targets_ask_for_rewrites_there_are(name: str) -> None:
    assert set(TARGETS[name].rewrites) <= FOR_TARGETS.keys()


def test_every_rewrite_says_what_it_is_for() -> None:
    assert all(p.reason and p.name == name for name, p in FOR_TARGETS.items())


def test_a_gate_between_layers() -> None:
    """Squeeze and excite: the hard-sigmoid stands behind a pool and two convolutions."""

    def gate(x: torch.Tensor, first: nn.Module, second: nn.Module) -> torch.Tensor:
        y = F.relu(second(F.adaptive_avg_pool2d(first(x), 1)))
        return x * F.hardsigmoid(y)

    model = Function(gate, nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1))
    result = rewritten(model, IMAGE, passes=[*CANONICAL, FOR_TARGETS["hard_swish"]])
    assert result.counts["hard_swish"] == 1
