"""The sample network: a small residual CNN for handwritten digits, 16 x 16 pixels, ten classes.

It is written the way people write networks, with what a quantizer meets in practice: BatchNorm
after every convolution, a ReLU module used twice, ReLU6, `+` on feature maps, a shortcut with
its own convolution, `torch.cat`, dropout, max pooling, a global average and a linear head.
"""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["DigitsNet", "digits_net"]


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the image size (divided by `stride`), then BatchNorm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut: a 1 x 1 convolution where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv_bn(inputs, outputs, 3, stride)
        self.conv2 = conv_bn(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv_bn(inputs, outputs, 1, stride)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv2(self.relu(self.conv1(x)))
        return self.relu(y + self.shortcut(x))


class Branches(nn.Module):
    """A 1 x 1 and a 3 x 3 convolution of the same input, side by side."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.narrow = nn.Sequential(conv_bn(inputs, outputs // 2, 1), nn.ReLU6())
        self.wide = nn.Sequential(conv_bn(inputs, outputs // 2, 3), nn.ReLU6())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.narrow(x), self.wide(x)], dim=1)


class DigitsNet(nn.Module):
    """Images [N, 1, 16, 16] in 0..1 -> logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(1, 32, 3), nn.ReLU())
        self.block1 = Residual(32, 32)
        self.block2 = Residual(32, 64, stride=2)
        self.branches = Branches(64, 64)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Sequential(conv_bn(64, 64, 3), nn.ReLU6())
        self.average = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block2(self.block1(self.stem(x)))
        x = self.last(self.pool(self.branches(x)))
        x = torch.flatten(self.average(x), 1)
        return self.head(self.dropout(x))


def digits_net() -> nn.Module:
    """The network in eval mode, with fresh weights; the trained ones are in weights.safetensors."""
    return DigitsNet().eval()
