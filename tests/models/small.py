"""Small networks with random weights and statistics, one for each thing a network can do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


def settle(model: nn.Module) -> nn.Module:
    """Eval mode; every norm gets statistics as training leaves them, one variance next to zero."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            if module.affine:
                module.weight.data.uniform_(-1.5, 1.5)
                module.bias.data.normal_()
            if module.running_var is not None:
                module.running_mean.normal_()
                module.running_var.uniform_(0.05, 4)
                module.running_var[0] = 1e-9
    return model.eval()


class Residual(nn.Module):
    """Two convolutions beside the identity; `+` on feature maps and one ReLU called twice."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.head = nn.Linear(channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.stem(x))
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        x = self.relu(x + y)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Concat(nn.Module):
    """Two branches of one stem, joined with the stem itself, which something else reads too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.narrow = nn.Conv2d(4, 2, 1)
        self.wide = nn.Conv2d(4, 3, 3, padding=1)
        self.last = nn.Conv2d(9, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        return self.last(torch.cat([F.relu(self.narrow(x)), self.wide(x), x], dim=1))


class NestedOutput(nn.Module):
    """A dict in a dict, and a tuple in it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.body(x)
        return {"scores": y, "extra": {"signs": F.relu(y), "pair": (y + 1, y * 2)}}


class Keywords(nn.Module):
    """Inputs given by name, one of them optional."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.body(x)
        return y if mask is None else y * mask


class TwoInputs(nn.Module):
    """An image and a vector that is added to each of its positions."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(3, 4, 3)
        self.vector = nn.Linear(5, 4)

    def forward(self, image: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        return F.relu(self.image(image) + self.vector(vector)[:, :, None, None])


def _separable() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU6(),
        nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU6(),
        nn.Conv2d(6, 4, 1),
    )


def _transposed() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, output_padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 3, 1),
    )


def _padded() -> nn.Module:
    """Padded to the window as keyword spotters do: more at the end than at the beginning."""
    return nn.Sequential(
        nn.ZeroPad2d((1, 1, 4, 5)),
        nn.Conv2d(1, 4, (10, 4), stride=2, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AvgPool2d((5, 4)),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(4, 3),
    )


@dataclass(frozen=True)
class Network:
    """A network and the shapes of one batch for it; `kwargs` are inputs given by name."""

    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    kwargs: Mapping[str, tuple[int, ...]] | None = None

    def model(self) -> nn.Module:
        return settle(self.make())

    def example(self, size: int | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Random arguments; of `size` samples, or as many as `shapes` say."""

        def draw(shape: tuple[int, ...]) -> torch.Tensor:
            return torch.randn(shape if size is None else (size, *shape[1:]))

        named = {k: draw(s) for k, s in (self.kwargs or {}).items()}
        return tuple(draw(s) for s in self.shapes), named


NETWORKS: Mapping[str, Network] = {
    "conv_bn_relu": Network(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), ((3, 3, 8, 8),)
    ),
    "residual": Network(Residual, ((3, 3, 8, 8),)),
    "concat": Network(Concat, ((3, 3, 6, 6),)),
    "separable": Network(_separable, ((3, 3, 8, 8),)),
    "transposed": Network(_transposed, ((3, 4, 5, 5),)),
    "padded": Network(_padded, ((3, 1, 10, 8),)),
    "signal": Network(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 5, padding="same"), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(2)
        ),
        ((3, 2, 12),),
    ),
    "volume": Network(
        lambda: nn.Sequential(nn.Conv3d(4, 4, 3), nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1)),
        ((3, 4, 5, 5, 5),),
    ),
    "linear_bn": Network(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)),
        ((4, 6),),
    ),
    "mlp_3d": Network(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), ((3, 7, 6),)
    ),
    "nested_output": Network(NestedOutput, ((3, 6),)),
    "keywords": Network(Keywords, ((3, 6),), {"mask": (3, 4)}),
    "two_inputs": Network(TwoInputs, ((3, 3, 6, 6), (3, 5))),
}
