"""A small network for the tests of the search, and what a search of it needs."""

from functools import cache

import torch
from torch import nn

import qtool


class Ladder(nn.Module):
    """Three convolutions in a row, one beside the last, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 3, padding=1)
        self.relu, self.pool = nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.first(x))
        z = self.relu(self.second(y))
        return self.head(self.pool(self.relu(self.third(z) + y)).flatten(1))


def ladder() -> tuple[nn.Module, list[torch.Tensor], list[torch.Tensor]]:
    """The network, calibration batches, evaluation batches."""
    torch.manual_seed(3)
    net = Ladder().eval()
    with torch.no_grad():  # so that its answers differ from sample to sample
        net.head.bias -= net(torch.randn(64, 3, 8, 8)).mean(0)
        net.head.weight *= 20
    return net, list(torch.randn(64, 3, 8, 8).split(32)), list(torch.randn(256, 3, 8, 8).split(64))


@cache
def captured_ladder() -> qtool.Captured:
    net, batches, _ = ladder()
    return qtool.capture_model(net, batches[0])
