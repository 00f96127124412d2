"""Layers that no recovery can help are left in float, and no others."""

from __future__ import annotations

import torch
from torch import nn

import qtool

WIDE = 1e4
HOSTILE = (1, 3, 4)


class Cancelling(nn.Module):
    """Reads an input twice, with huge weights that add up to nothing: they leave the others no
    codes, and no scale of a channel helps, since each output has both."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2 * channels, channels, 3, padding=1)
        with torch.no_grad():
            weight = self.layer.weight
            huge = WIDE * float(weight.abs().median())
            weight[:, 0] += huge
            weight[:, channels] = weight[:, channels] - huge

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([x, x], 1))


def test_exactly_those_are_lifted() -> None:
    torch.manual_seed(0)
    layers = [Cancelling(24) if i in HOSTILE else nn.Conv2d(24, 24, 3, padding=1) for i in range(6)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    seen, asked = torch.randn(32, 24, 5, 5), torch.randn(64, 24, 5, 5)
    found = qtool.tune(
        net,
        [seen],
        [asked],
        goals=qtool.TuneGoals(min_sqnr=30.0, smallest=True),
        options=qtool.SearchOptions(choices=("static",), evaluations=8, timing=0.01),
        accuracy=("fast",),
    )
    assert found.reached
    lifted = {name for g in found.groups if g.choice != "static" for name in g.layers}
    assert lifted == {f"{i}.layer" for i in HOSTILE}, str(found)
