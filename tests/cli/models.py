"""Models and data for the command line, as package.module:name."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn


def transposed() -> nn.Module:
    """One layer of it has no integer kernel. Its weights are random: no two are the same."""
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ConvTranspose2d(4, 4, 2), nn.Conv2d(4, 2, 1))


def normed() -> nn.Module:
    """What training saw is written down in it."""
    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)
    return nn.Sequential(*layers).eval()


def seeded() -> nn.Module:
    """The same weights in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transposed()


class FirstColumns(nn.Module):
    """A network of the first four columns of a table of any width."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, table: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.layers(table[:, :4])
        return value.squeeze(1)


def first_columns() -> nn.Module:
    """The same weights in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FirstColumns().eval()


def nothing() -> nn.Module:
    """No layer of it has an integer kernel."""
    return nn.Sequential(nn.Softmax(1), nn.LayerNorm(6))


def broken() -> nn.Module:
    raise RuntimeError("no licence")


class Restless(nn.Conv2d):
    def eval(self) -> Restless:
        raise RuntimeError("not now")


def restless() -> nn.Module:
    return Restless(2, 4, 3)


def number() -> int:
    return 5


def images() -> list[torch.Tensor]:
    return list(torch.randn(24, 2, 6, 6, generator=torch.Generator().manual_seed(0)).split(8))


def labelled() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Once through, as a generator."""
    for x in images():
        yield x, torch.zeros(len(x))


def empty() -> list[torch.Tensor]:
    return []


def not_a_number() -> list[torch.Tensor]:
    return [*images(), torch.full((8, 2, 6, 6), torch.nan)]


def other_shape() -> list[torch.Tensor]:
    return [*images(), torch.zeros(8, 3, 6, 6)]


def fails() -> list[torch.Tensor]:
    raise RuntimeError("the disk is gone")


def leaves() -> Any:
    sys.exit(0)


def goes_away() -> Any:
    raise GeneratorExit


def leaves_later() -> Iterator[torch.Tensor]:
    yield torch.zeros(4, 2, 6, 6)
    sys.exit(7)


def leaving() -> nn.Module:
    class Leaving(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sys.exit(3)

    return Leaving()


def endless_with_a_sign() -> Iterator[torch.Tensor]:
    """Says in a file of its own, among those for a while, that it is being read."""
    for i in itertools.count():
        yield torch.zeros(4, 2, 6, 6)
        if i == 4:
            (Path(tempfile.gettempdir()) / f"reading-{os.getpid()}").touch()


def endless() -> Iterator[torch.Tensor]:
    for i in itertools.count():
        yield torch.zeros(4, 2, 6, 6)
        if i == 1:
            sys.stderr.write("the data is being read\n")
            sys.stderr.flush()


def tells_at_length() -> nn.Module:
    raise RuntimeError("one\n  two\nthree")


def first_class(model: Any) -> float:
    """A metric: how often a model of digits says 0."""
    return float((model(torch.zeros(4, 1, 16, 16)).argmax(1) == 0).float().mean())


def colours() -> nn.Module:
    """Scores of red, green and blue: the mean of each channel."""
    layer = nn.Conv2d(3, 3, 1, bias=False)
    layer.weight.data = torch.eye(3)[:, :, None, None]
    return nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


def pixels(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
