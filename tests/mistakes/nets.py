"""Small networks and data that users get wrong."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import qtool

IDS = torch.randint(0, 16, (40, 6), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Custom(nn.Module):
    """A convolution, and a function of its result and the input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.conv(x), x)


def custom(function: Callable[..., Any]) -> nn.Module:
    return Custom(function).eval()


def image_net() -> nn.Module:
    """Takes images of [batch, 3, 8, 8]."""
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    return nn.Sequential(*layers).eval()


def flat_net() -> nn.Module:
    """Takes vectors of 12 numbers."""
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def grouped() -> nn.Module:
    """Has a transposed convolution of groups."""
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ConvTranspose2d(6, 6, 3, groups=3)).eval()


def token_net() -> nn.Module:
    """Takes token ids."""
    return nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 4)).eval()


def two_inputs() -> nn.Module:
    return Two().eval()


class Two(nn.Module):
    """Takes two inputs by name, and labels for a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, a: torch.Tensor, b: torch.Tensor, labels: Any = None) -> Any:
        scores = self.left(a) + self.right(b)
        if labels is None:
            return {"scores": scores}
        return {"loss": nn.functional.cross_entropy(scores, labels), "scores": scores}


def noisy() -> nn.Module:
    return custom(lambda y, _: y + torch.randn_like(y))


def similarities() -> nn.Module:
    """Returns a number for each pair of samples."""
    return custom(lambda y, x: (y.flatten(1) @ y.flatten(1).T).reshape(-1))


def rows() -> nn.Module:
    """Returns rows of images, which are no classes; always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3)).eval()


def other_weights() -> nn.Module:
    net = image_net()
    with torch.no_grad():
        net[0].weight.mul_(2)
    return net


def score(model: Any) -> float:
    """A metric of a model that takes images."""
    return float(model(IMAGES).mean())


@cache
def captured() -> qtool.Captured:
    """`image_net`, captured once."""
    return qtool.capture_model(image_net(), IMAGES)


@cache
def calibration() -> qtool.Calibration:
    return qtool.calibrate(captured(), [IMAGES], accuracy="fast")


def quantize(data: Any, model: Any = None, **options: Any) -> qtool.QuantizedModel:
    """Quantize with the least effort."""
    return qtool.quantize(captured() if model is None else model, data, accuracy="fast", **options)


class Samples(Dataset[Any]):
    """One image and its label at a time, as torchvision's datasets."""

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return IMAGES[index], 0


def images() -> list[torch.Tensor]:
    return [IMAGES]


def not_finite() -> list[torch.Tensor]:
    return [IMAGES, IMAGES * torch.nan]


def broken_images() -> Iterator[torch.Tensor]:
    yield IMAGES
    raise OSError("the network drive is gone")


def tensor_of(image: Any) -> torch.Tensor:
    return torch.zeros(3, 8, 8)


def unloadable() -> nn.Module:
    """Fails: what can be seen before is reported before."""
    raise RuntimeError("the model was loaded")


number = 5


def price_net() -> nn.Module:
    """Takes three numbers, and predicts one."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
