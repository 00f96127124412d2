"""Which points share parameters: what passes codes on, and what only a concat reads.

A layer behind a concat reads its codes; what no layer reads is joined in float.
"""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core.types import SharedWith
from qtool.passes import FOR_TARGETS, run_passes
from qtool.planning.plan import QuantPlan
from qtool.planning.planner import make_plan
from qtool.planning.targets import target
from tests.passes.differential import Function, rewritten
from tests.planning.planned import MINMAX, plan

IMAGE = (2, 3, 6, 6)


def shared(plan: QuantPlan) -> dict[str, str]:
    return {p.name: p.spec.point for p in plan if isinstance(p.spec, SharedWith)}


def convs(count: int) -> list[nn.Module]:
    return [nn.Conv2d(3, 3, 1) for _ in range(count)]


def read(channels: int = 6) -> nn.Module:
    """A layer that reads a concat in codes."""
    return nn.Conv2d(channels, 1, 1)


def _shared_input(x: torch.Tensor, a: nn.Module, b: nn.Module, last: nn.Module) -> torch.Tensor:
    y = a(x)
    return last(torch.cat([y, b(y)], 1))


def _two_concats(
    x: torch.Tensor, a: nn.Module, b: nn.Module, c: nn.Module, last: nn.Module
) -> torch.Tensor:
    return last(torch.cat([torch.cat([a(x), b(x)], 1), c(x)], 1))


def _two_readers(
    x: torch.Tensor, a: nn.Module, b: nn.Module, last: nn.Module
) -> tuple[torch.Tensor, ...]:
    y = a(x)
    return last(torch.cat([y, b(x)], 1)), last(torch.cat([b(x), y], 1))


def _also_returned(
    x: torch.Tensor, a: nn.Module, b: nn.Module, last: nn.Module
) -> tuple[torch.Tensor, ...]:
    y = a(x)
    return last(torch.cat([y, b(x)], 1)), y


def _two_relus(x: torch.Tensor, a: nn.Module, b: nn.Module, last: nn.Module) -> torch.Tensor:
    return last(torch.cat([F.relu(a(x)), F.relu(b(x))], 1))


def _relu_and_clamp(x: torch.Tensor, a: nn.Module, b: nn.Module, last: nn.Module) -> torch.Tensor:
    return last(torch.cat([F.relu(a(x)), F.hardtanh(b(x))], 1))


def _pooled(x: torch.Tensor, a: nn.Module, b: nn.Module, last: nn.Module) -> torch.Tensor:
    return last(torch.cat([F.max_pool2d(F.relu(a(x)), (2, 1)), b(x)[:, :, ::2]], 1))


SHARING = {
    "both inputs are the concat's alone": (
        lambda: Function(lambda x, a, b, c: c(torch.cat([a(x), b(x)], 1)), *convs(2), read()),
        {"parts.0": "cat", "parts.1": "cat"},
    ),
    "an input that others read keeps its own": (
        lambda: Function(_shared_input, *convs(2), read()),
        {"parts.1": "cat"},
    ),
    "an input that is an output keeps its own": (
        lambda: Function(_also_returned, *convs(2), read()),
        {"parts.1": "cat"},
    ),
    "an input of two concats keeps its own": (
        lambda: Function(_two_readers, *convs(2), read()),
        {"parts.1": "cat", "parts.1_2": "cat_2"},
    ),
    "the model's input keeps its own": (
        lambda: Function(lambda x, a, b: b(torch.cat([a(x), x], 1)), *convs(1), read()),
        {"parts.0": "cat"},
    ),
    "a concat of a concat": (
        lambda: Function(_two_concats, *convs(3), read(9)),
        {"parts.0": "cat_2", "parts.1": "cat_2", "parts.2": "cat_2", "cat": "cat_2"},
    ),
    "through what passes codes on, but not where a relu would cost a kernel": (
        lambda: Function(_pooled, *convs(2), read()),
        {"max_pool2d": "relu", "parts.1": "cat", "slice_2": "cat"},
    ),
    "relus among themselves": (
        lambda: Function(_two_relus, *convs(2), read()),
        {"relu": "cat", "relu_2": "cat"},
    ),
    "a relu keeps its own next to a clamp": (
        lambda: Function(_relu_and_clamp, *convs(2), read()),
        {},
    ),
    "a chain has the parameters of its beginning": (
        lambda: nn.Sequential(*convs(1), nn.MaxPool2d(2), nn.Flatten(2)),
        {"1": "0", "2": "0"},
    ),
    "a layer called twice has parameters for each call": (
        lambda: Function(lambda x, a: F.max_pool2d(a(x), 2) + F.max_pool2d(a(x), 2), *convs(1)),
        {"max_pool2d": "parts.0", "max_pool2d_2": "parts.0_2"},
    ),
}


@pytest.mark.parametrize(("model", "expected"), SHARING.values(), ids=SHARING)
def test_sharing(model: Callable[[], nn.Module], expected: dict[str, str]) -> None:
    assert shared(plan(model(), IMAGE)) == expected


class WithInput(nn.Module):
    """A concat that is the only reader of one of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        (self.conv,), self.last = convs(1), read()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([self.conv(x), y.flip(2)], 1))


def test_an_input_keeps_its_own_parameters_though_a_concat_alone_reads_it() -> None:
    assert shared(plan(WithInput(), IMAGE, IMAGE)) == {"conv": "cat", "flip": "y"}


def test_a_rescaled_value_has_the_codes_of_its_source() -> None:
    result = rewritten(nn.Sequential(*convs(1), nn.Hardswish()), IMAGE)
    run_passes(result.graph.module, [FOR_TARGETS["hard_swish"]])
    found = make_plan(result.graph.graph, target("onnxruntime"), MINMAX)
    assert found.point("1.sixth").spec == SharedWith("0", pytest.approx(1 / 6))


def test_shuffled_channels_keep_their_parameters() -> None:
    def shuffle(x: torch.Tensor, first: nn.Module, last: nn.Module) -> torch.Tensor:
        y = first(x)
        n, c, h, w = y.shape
        return last(y.view(n, 3, c // 3, h, w).transpose(1, 2).reshape(n, c, h, w))

    model = Function(shuffle, nn.Conv2d(3, 6, 1), nn.Conv2d(6, 3, 1))
    result = rewritten(model, IMAGE)
    assert run_passes(result.graph.module, [FOR_TARGETS["channel_shuffle"]]) == {
        "channel_shuffle": 1
    }
    found = make_plan(result.graph.graph, target("onnxruntime"), MINMAX)
    assert list(shared(found).values()) == ["parts.0"]
