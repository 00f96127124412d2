"""A small detector: where the digits of an image are, and which.

One stage, no anchors, as YOLOX and FCOS have it: each of 8 x 8 places says how far a box reaches to
its four sides and what is in it. Boxes are decoded in the network, so that its one output has
coordinates of 0 to 64 beside scores of 0 to 1.
"""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["STRIDE", "Detector", "detector"]

SIZE, STRIDE, CLASSES = 64, 8, 10


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A 3 x 3 convolution with BatchNorm and SiLU."""
    layer = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.SiLU())


class Detector(nn.Module):
    """Images [N, 1, 64, 64] in 0..1 -> [N, 14, 64]: for each place the left, upper, right and lower
    end of a box in pixels, and the scores of ten digits."""

    places: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(1, 16, 2), conv(16, 32, 2), conv(32, 48, 2), conv(48, 48))
        self.reach = nn.Sequential(conv(48, 48), nn.Conv2d(48, 4, 1))
        self.kind = nn.Sequential(conv(48, 48), nn.Conv2d(48, CLASSES, 1))
        middle = (torch.arange(SIZE // STRIDE) + 0.5) * STRIDE
        rows, columns = torch.meshgrid(middle, middle, indexing="ij")
        self.register_buffer("places", torch.stack([columns, rows]), persistent=False)

    def heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """How far boxes reach, in steps of the grid, [N, 4, 8, 8]; logits [N, 10, 8, 8]."""
        x = self.body(x)
        return torch.relu(self.reach(x)), self.kind(x)

    def boxes(self, reach: torch.Tensor) -> torch.Tensor:
        low, high = (reach * STRIDE).chunk(2, 1)
        return torch.cat([self.places - low, self.places + high], 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        reach, logits = self.heads(x)
        return torch.cat([self.boxes(reach), logits.sigmoid()], 1).flatten(2)


def detector() -> nn.Module:
    """The network in eval mode, with fresh weights; the trained ones are in weights.safetensors."""
    return Detector().eval()
