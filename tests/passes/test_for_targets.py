"""The rewrites that targets ask for: where they apply, where they may not."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.passes import CANONICAL, FOR_TARGETS
from qtool.planning.targets import TARGETS
from tests.named_cases import named_cases
from tests.passes.differential import Function, rewritten

IMAGE = (2, 4, 6, 6)
NORM, POOL, SHUFFLE = "batch_norm_as_conv", "average_pool_as_conv", "channel_shuffle"
STORED, CLAMPS = "stored_operands", "unfused_clamps"


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


def _relu_of_read(x: torch.Tensor, conv: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    y = conv(x)
    return y, y.relu()


def behind_conv(activation: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(4, 4, 3), activation)


@named_cases(
    "name, model, count, ops",
    ("norm of an image", NORM, lambda: nn.BatchNorm2d(4), 1, "conv"),
    ("norm, not affine", NORM, lambda: nn.BatchNorm2d(4, affine=False), 1, "conv"),
    (
        "norm of a signal",
        NORM,
        lambda: nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(4)),
        1,
        "reshape conv",
    ),
    (
        "norm of vectors",
        NORM,
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(144)),
        0,
        "reshape batch_norm",
    ),
    ("pool", POOL, pool(2), 1, "conv"),
    ("pool, overlapping", POOL, pool((3, 2), 1), 1, "conv"),
    ("pool, padded", POOL, pool(3, 2, 1), 1, "conv"),
    (
        "pool, padding that does not count",
        POOL,
        pool(3, 2, 1, count_include_pad=False),
        0,
        "average_pool",
    ),
    ("pool, ceil_mode that changes nothing", POOL, pool(4, 2, 1, ceil_mode=True), 1, "conv"),
    ("pool, cut windows", POOL, pool(3, 2, ceil_mode=True), 0, "average_pool"),
    (
        "pool of a signal",
        POOL,
        lambda: nn.Sequential(nn.Flatten(2), nn.AvgPool1d(2)),
        1,
        "reshape conv",
    ),
    ("pool, other divisor", POOL, pool(2, divisor_override=3), 1, "conv mul"),
    ("shuffle", SHUFFLE, of(_shuffle), 1, "index_select"),
    (
        "shuffle, axes from behind",
        SHUFFLE,
        of(lambda x: _shuffle(x, 4, (-4, -3))),
        1,
        "index_select",
    ),
    ("shuffle of rows", SHUFFLE, of(_shuffled_rows), 0, "reshape transpose reshape"),
    ("shuffle of samples", SHUFFLE, of(_shuffled_samples), 0, "cat reshape transpose reshape"),
    ("shuffle with a second reader", SHUFFLE, of(_tapped_shuffle), 0, "reshape transpose reshape"),
    ("hard-swish", "hard_swish", behind_conv(nn.Hardswish()), 1, "conv rescale add clamp mul"),
    ("hard-sigmoid", "hard_swish", behind_conv(nn.Hardsigmoid()), 1, "conv rescale add clamp"),
    ("hard-swish of the input", "hard_swish", nn.Hardswish, 0, "hardswish"),
    (
        "three channels inside",
        "pad_channels",
        of(lambda x, c: c(x[:, :3]), nn.Conv2d(3, 16, 3)),
        0,
        "slice conv",
    ),
    ("four channels", "pad_channels", lambda: nn.Conv2d(4, 16, 3), 0, "conv"),
    ("no bias", "hold_bias", lambda: nn.Linear(6, 3, bias=False), 1, "reshape linear reshape"),
    (
        "a bias of zeros",
        "hold_bias",
        of(lambda x, layer: F.linear(x, layer.weight, torch.zeros(3)), nn.Linear(6, 3)),
        1,
        "reshape linear reshape",
    ),
    ("numbers", STORED, of(lambda x: (1 - x / 255) * 3 + x), 3, "mul mul add mul add"),
    ("a number over zero", STORED, of(lambda x: (x / 0).clamp(0, 6)), 0, "div clamp"),
    ("a difference", STORED, of(lambda x: x.relu() - x), 1, "relu mul add"),
    ("a square of the negative", STORED, of(lambda x: (-x).square()), 2, "mul mul"),
    ("hard-sigmoid of the input", STORED, nn.Hardsigmoid, 1, "mul add clamp"),
    ("a product and a sum", STORED, of(lambda x: x * x + x), 0, "mul add"),
    ("a quotient of activations", STORED, of(lambda x: x / x.exp()), 0, "exp div"),
    (
        "a norm of vectors as a product and a sum",
        STORED,
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(144)),
        1,
        "reshape mul add",
    ),
    ("relu of the input", CLAMPS, nn.ReLU, 1, "mul relu"),
    ("relu behind a layer", CLAMPS, behind_conv(nn.ReLU()), 0, "conv relu"),
    ("relu and another reader", CLAMPS, of(_relu_of_read, nn.Conv2d(4, 4, 3)), 1, "conv mul relu"),
    ("clamp from below 0", CLAMPS, lambda: nn.Hardtanh(-1, 2), 1, "add clamp add"),
    ("clamp without a lower end", CLAMPS, of(lambda x: x.clamp(max=3)), 0, "clamp"),
    ("a bias", "hold_bias", lambda: nn.Linear(6, 3), 0, "reshape linear reshape"),
    (
        "no reshape behind",
        "hold_bias",
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3, bias=False)),
        0,
        "reshape linear",
    ),
)
def test_rewrites(name: str, model: Callable[[], nn.Module], count: int, ops: str) -> None:
    result = rewritten(model(), IMAGE, passes=[*CANONICAL, FOR_TARGETS[name]])
    assert result.counts[name] == count
    assert [op for op in result.ops() if op not in ("sym_size", "floordiv", "mul_1")] == ops.split()


def _normalized(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return layer((x / 255 - torch.tensor([0.5, 0.4, 0.3, 0.2]).view(4, 1, 1)) / 0.25)


@named_cases(
    "function, count",
    ("as of images", _normalized, 1),
    ("factor and summand", lambda x, c: c(1.5 + 2 * x), 1),
    ("factor", lambda x, c: c(x / 128), 1),
    ("behind a pad", lambda x, c: c(F.pad(x - 1, (1, 1, 1, 1))), 1),
    ("with a second reader", lambda x, c: c(y := x * 2 + 1) + y.mean(), 0),
    ("of a number over the input", lambda x, c: c(1 / (x * x + 1)), 0),
    ("by pixel", lambda x, c: c(x * torch.ones(6)), 0),
    ("of two inputs of the layer", lambda x, c: c(x * x), 0),
    ("behind an activation", lambda x, c: c(F.relu(x) * 2 + 1), 0),
    ("none", lambda x, c: c(x), 0),
)
def test_normalisation_of_the_input(function: Callable[..., object], count: int) -> None:
    model = Function(function, nn.Conv2d(4, 5, 3, padding=1))
    result = rewritten(model, IMAGE, passes=[*CANONICAL, FOR_TARGETS["input_affine"]])
    assert result.counts["input_affine"] == count
    assert result.ops().count("conv") == 1 + count
    if count:
        assert not {"mul", "div", "sub"} & set(result.ops())


@named_cases(
    "conv, count",
    ("colours", lambda: nn.Conv2d(3, 16, 3), 1),
    ("a signal", lambda: nn.Conv1d(3, 16, 3, bias=False), 1),
    ("few outputs", lambda: nn.Conv2d(3, 8, 3), 0),
    ("in groups", lambda: nn.Conv2d(3, 48, 3, groups=3), 0),
)
def test_pad_channels(conv: Callable[[], nn.Module], count: int) -> None:
    layer = conv()
    shape = (2, 3, *[6] * (layer.weight.dim() - 2))
    result = rewritten(layer, shape, passes=[*CANONICAL, FOR_TARGETS["pad_channels"]])
    assert result.counts["pad_channels"] == count
    assert result.ops() == [*["constant_pad_nd"] * count, "conv"]


@named_cases(
    "conv, groups",
    ("to 32 channels, where 64 are too many", lambda: nn.Conv2d(128, 64, 3, groups=32), 4),
    ("to all", lambda: nn.Conv2d(48, 48, (1, 3), 2, (0, 1), 2, groups=3), 1),
    ("a prime number", lambda: nn.Conv2d(60, 20, 1, groups=5, bias=False), 5),
    ("depthwise", lambda: nn.Conv2d(16, 32, 3, groups=16), 16),
    ("wide", lambda: nn.Conv2d(98, 4, 1, groups=2), 2),
    ("a signal", lambda: nn.Conv1d(16, 16, 3, groups=4), 4),
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
