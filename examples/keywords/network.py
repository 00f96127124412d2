"""A keyword spotter as microcontrollers run it: a small network of depthwise convolutions."""

from __future__ import annotations

import torch
from torch import nn

from examples.keywords.sounds import CLASSES


class KeywordNet(nn.Module):
    """Features [N, 1, 49, 10] to scores of classes [N, 6]."""

    def __init__(self, channels: int = 24, blocks: int = 3) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, channels, (10, 4), stride=2, padding=(4, 1)), *_norm(channels)]
        for _ in range(blocks):
            layers += [nn.Conv2d(channels, channels, 3, padding=1, groups=channels)]
            layers += [*_norm(channels), nn.Conv2d(channels, channels, 1), *_norm(channels)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, len(CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean((2, 3)))


def _norm(channels: int) -> tuple[nn.Module, ...]:
    return nn.BatchNorm2d(channels), nn.ReLU()


def keyword_net() -> KeywordNet:
    """The network without weights; `qtool quantize --weights` loads them."""
    return KeywordNet().eval()
