"""A tagger: a convolution over time, the recurrent operator, a linear layer for each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["Tagger"]


class Tagger(nn.Module):
    """Sequences [batch, time, 8] -> scores [batch, time, 4].

    Args:
        operator: a form of the minimal gated unit (see mgu.py).
    """

    def __init__(self, operator: Any, hidden: int = 24) -> None:
        super().__init__()
        self.operator = operator
        self.conv = nn.Conv1d(8, 16, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(2 * hidden, 16) / 4)
        self.recurrent = nn.Parameter(torch.randn(2 * hidden, hidden) / hidden**0.5)
        self.bias = nn.Parameter(torch.zeros(2 * hidden))
        self.head = nn.Linear(hidden, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.head(self.operator(features, self.weight, self.recurrent, self.bias))
