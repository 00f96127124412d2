"""Models told apart: by what they compute, not by what things are called."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from qtool.core.data import Batch
from qtool.core.graph.fingerprint import fingerprint
from qtool.frontends.torch.export_module import capture_module
from tests.passes.differential import Function


def net(width: int = 3, slope: float = 0.1, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width, bias=bias), nn.LeakyReLU(slope), nn.Linear(width, 2))


class Renamed(nn.Module):
    """The same network under other names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = net()

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as in nn.Sequential
        return self.second(self.act(self.first(input)))


def of(model: nn.Module, size: int = 4, **options: object) -> str:
    graph = capture_module(model.eval(), Batch((torch.ones(size, 3),)), **options)
    return fingerprint(graph.module)


def _nudged() -> nn.Module:
    model = net()
    weight = model[2].weight.data
    weight[1, 2] = torch.nextafter(weight[1, 2], torch.tensor(9.0))
    return model


@pytest.fixture(scope="module")
def expected() -> str:
    return of(net())


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, int], bool]] = {
    "made again": (net, {}, True),
    "captured with another batch": (net, {"size": 7}, True),
    "other names": (Renamed, {}, True),
    "one bit of one weight": (_nudged, {}, False),
    "another width": (lambda: net(width=4), {}, False),
    "another constant": (lambda: net(slope=0.2), {}, False),
    "no bias": (lambda: net(bias=False), {}, False),
    "one layer more": (lambda: nn.Sequential(*net(), nn.ReLU()), {}, False),
    "rounded weights": (lambda: net().half().float(), {}, False),
}


@pytest.mark.parametrize("name", MODELS)
def test_only_the_same_function_has_the_same_fingerprint(name: str, expected: str) -> None:
    model, options, same = MODELS[name]
    assert (of(model(), **options) == expected) == same


SIZES = Function(lambda x: x[: max(x.shape[0] - 2, 1)])
"""Arithmetic on a dynamic size, by functions whose text holds their address."""


def test_the_same_in_every_process() -> None:
    code = (
        "import torch\n"
        "from tests.core.graph.test_fingerprint import SIZES, net, of\n"
        "junk = [torch.zeros(1) for _ in range(1000)]\n"
        "print(of(net()), of(SIZES))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [of(net()), of(SIZES)]


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3.0),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.zeros(0, 2),
        torch.ones(3, 2).T,
    ],
    ids=["a number", "booleans", "bfloat16", "empty", "transposed"],
)
def test_constants_of_every_kind(value: torch.Tensor) -> None:
    constant = Function(lambda x: (x + 1, constant.value.float() * 1))
    constant.value = nn.Buffer(value)
    assert len(of(constant)) == 32
