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


def _swapped() -> nn.Module:
    model = net()
    return nn.Sequential(model[2], model[1], nn.Linear(2, 2))


@pytest.fixture(scope="module")
def expected() -> str:
    return of(net())


@pytest.mark.parametrize(
    ("model", "options"),
    [
        pytest.param(net, {}, id="made again"),
        pytest.param(net, {"size": 7}, id="captured with another batch"),
        pytest.param(Renamed, {}, id="other names"),
    ],
)
def test_same(model: Callable[[], nn.Module], options: dict[str, int], expected: str) -> None:
    assert of(model(), **options) == expected


@pytest.mark.parametrize(
    ("model", "options"),
    [
        pytest.param(_nudged, {}, id="one bit of one weight"),
        pytest.param(lambda: net(width=4), {}, id="another width"),
        pytest.param(lambda: net(slope=0.2), {}, id="another constant"),
        pytest.param(lambda: net(bias=False), {}, id="no bias"),
        pytest.param(lambda: nn.Sequential(*net(), nn.ReLU()), {}, id="one layer more"),
        pytest.param(lambda: net().half().float(), {}, id="rounded weights"),
    ],
)
def test_different(model: Callable[[], nn.Module], options: dict[str, int], expected: str) -> None:
    assert of(model(), **options) != expected


class Sizes(nn.Module):
    """Arithmetic on a dynamic size, by functions whose text holds their address."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[: max(x.shape[0] - 2, 1)]


def test_the_same_in_every_process() -> None:
    code = (
        "import torch\n"
        "from tests.core.graph.test_fingerprint import Sizes, net, of\n"
        "junk = [torch.zeros(1) for _ in range(1000)]\n"
        "print(of(net()), of(Sizes()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [of(net()), of(Sizes())]


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
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Buffer(value)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, self.value.float() * 1

    assert len(of(Constant())) == 32
