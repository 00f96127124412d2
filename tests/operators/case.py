"""A network for one way to write an operator, and what has to become of it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Body = Callable[..., Any]
Maker = Callable[[], nn.Module]


@dataclass(frozen=True)
class Case:
    """kernels: the operators that compute in the graph which the runtime executes, and how often;
    the layers before and behind count, too. floats: operators that the plan leaves in float -> a
    part of the reason it gives. indices: the input are integers from 0 to 9.
    """

    make: Maker
    kernels: Counter[str]
    floats: Mapping[str, str] = field(default_factory=dict)
    shapes: tuple[tuple[int, ...], ...] = ((4, 4, 8, 8),)
    indices: bool = False


class Between(nn.Module):
    """A layer, a function of (self, x), a layer: codes arrive, and codes are wanted."""

    def __init__(self, first: nn.Module, body: Body, last: nn.Module) -> None:
        super().__init__()
        self.first, self.body, self.last = first, body, last

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.body(self, self.first(x)))


class Whole(nn.Module):
    """Layers by name, and a function of (self, *inputs)."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, *x: torch.Tensor) -> Any:
        return self.body(self, *x)


def _with(network: nn.Module, layers: Mapping[str, Maker]) -> nn.Module:
    for name, make in layers.items():
        network.add_module(name, make())
    return network


def conv(channels: int = 8, kernel: int = 1, **options: Any) -> Maker:
    return lambda: nn.Conv2d(8, channels, kernel, **options)


def linear(features: int = 8) -> Maker:
    return lambda: nn.Linear(8, features)


def image(
    body: Body,
    kernels: str = "",
    floats: Mapping[str, str] | None = None,
    channels: int = 8,
    **layers: Maker,
) -> Case:
    """Between two 1x1 convolutions of 8 and of `channels` channels; `kernels` are those between."""
    counts = Counter(["QLinearConv", "QLinearConv", *kernels.split()])
    return Case(
        lambda: _with(Between(nn.Conv2d(4, 8, 1), body, nn.Conv2d(channels, 4, 1)), layers),
        counts,
        floats or {},
    )


def tokens(
    body: Body,
    kernels: str = "",
    floats: Mapping[str, str] | None = None,
    features: int = 8,
    **layers: Maker,
) -> Case:
    """Between two linear layers on [batch, 6, 8]; the second one has `features` inputs."""
    counts = Counter(["QGemm", "QGemm", *kernels.split()])
    return Case(
        lambda: _with(Between(nn.Linear(8, 8), body, nn.Linear(features, 4)), layers),
        counts,
        floats or {},
        ((4, 6, 8),),
    )


def whole(
    body: Body,
    kernels: str,
    *shapes: tuple[int, ...],
    floats: Mapping[str, str] | None = None,
    indices: bool = False,
    **layers: Maker,
) -> Case:
    """A network without anything around it."""
    counts = Counter(kernels.split())
    return Case(lambda: _with(Whole(body), layers), counts, floats or {}, shapes, indices)
