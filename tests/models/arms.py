"""Many networks in one, since converting costs about the same for one as for ten."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class Arms(nn.Module):
    """Networks of one input, each with an output of its own, called `NAME_out`."""

    def __init__(self, arms: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, arm in arms.items():
            self.add_module(name, arm)
        self.names = list(arms)

    def forward(self, *x: torch.Tensor) -> dict[str, Any]:
        return {f"{name}_out": getattr(self, name)(*x) for name in self.names}
