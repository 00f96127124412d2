"""Networks of the truth audit, as a user has them: functions that qtool is given by name.
Those of tables and images; sequences.py has the others.

The command runs with this folder on its path and loads the weights that the audit wrote. Nothing
here imports qtool.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

STACKED = "calibration.npz"
"""Samples that are whole batches: arrays [samples, ...] by the names of inputs."""


def numbers() -> nn.Module:
    """34 numbers of scales 0.01 to 10 to one: a target with rare large values."""
    hidden = [nn.Linear(34, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 64), nn.ReLU()]
    return Named(nn.Sequential(nn.BatchNorm1d(34), *hidden, nn.Linear(64, 1))).eval()


class Named(nn.Module):
    """Gives the input of a sequence the name x."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Embeddings(nn.Module):
    """Two categories [N, 2] and ten numbers [N, 10] to one number."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(50, 8), nn.Embedding(1000, 16)])
        hidden = [nn.BatchNorm1d(34), nn.Linear(34, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()]
        self.body = nn.Sequential(*hidden, nn.Linear(64, 1))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        rows = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([*rows, numbers], 1))


def embeddings() -> nn.Module:
    return Embeddings().eval()


def _mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return Named(nn.Sequential(*layers[:-1]))


def heavy_tails() -> nn.Module:
    return _mlp(24, 96, 48, 5).eval()


def wide_scales() -> nn.Module:
    return _mlp(40, 128, 64, 10).eval()


class ResidualMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 96), nn.Linear(96, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(96) for _ in range(3))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(96, 192), nn.GELU(), nn.Linear(192, 96)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return self.last(x)


def residual_mlp() -> nn.Module:
    return ResidualMlp().eval()


def autoencoder() -> nn.Module:
    return _mlp(64, 48, 12, 48, 64).eval()


def conv_norm(
    i: int, o: int, stride: int = 1, *, kernel: int = 3, groups: int = 1, act: type = nn.ReLU
) -> tuple[nn.Module, ...]:
    layer = nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)
    return layer, nn.BatchNorm2d(o), act()


class SmallCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [*conv_norm(3, 16, act=nn.SiLU), *conv_norm(16, 32, 2, act=nn.SiLU)]
        self.stem = nn.Sequential(*layers, *conv_norm(32, 64, 2, act=nn.SiLU))
        self.side = nn.Sequential(*conv_norm(64, 64, act=nn.SiLU))
        self.head = nn.Linear(64, 8)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        return self.head((x + self.side(x)).mean((2, 3)))


def small_cnn() -> nn.Module:
    return SmallCnn().eval()


class Inverted(nn.Module):
    """An inverted bottleneck, with a squeeze and excitation where `squeeze`."""

    def __init__(self, i: int, o: int, stride: int, act: type, squeeze: bool) -> None:
        super().__init__()
        h = 3 * i
        wide = [*conv_norm(i, h, kernel=1, act=act), *conv_norm(h, h, stride, groups=h, act=act)]
        self.wide = nn.Sequential(*wide)
        if squeeze:
            self.down, self.up = nn.Conv2d(h, h // 4, 1), nn.Conv2d(h // 4, h, 1)
        self.project = nn.Sequential(nn.Conv2d(h, o, 1, bias=False), nn.BatchNorm2d(o))
        self.skip, self.squeeze = stride == 1 and i == o, squeeze

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(x)
        if self.squeeze:
            y = y * torch.sigmoid(self.up(F.silu(self.down(y.mean((2, 3), keepdim=True)))))
        y = self.project(y)
        return x + y if self.skip else y


class MobileCnn(nn.Module):
    def __init__(self, act: type, squeeze: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_norm(3, 16, 2, act=act))
        sizes = ((16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1))
        self.blocks = nn.Sequential(*(Inverted(i, o, s, act, squeeze) for i, o, s in sizes))
        self.head = nn.Linear(40, 8)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(image)), 1).flatten(1))


def squeeze_excite() -> nn.Module:
    return MobileCnn(nn.SiLU, squeeze=True).eval()


def mobile_cnn() -> nn.Module:
    return MobileCnn(nn.ReLU6, squeeze=False).eval()


def any_size_cnn() -> nn.Module:
    """Any height and width, by an adaptive pool."""
    layers = [*conv_norm(3, 16, 2), *conv_norm(16, 32, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return Named(nn.Sequential(*layers, nn.Linear(128, 8))).eval()


class UNet(nn.Module):
    """Images [N, 3, 32, 32] to a mask of logits."""

    def __init__(self, w: int = 12) -> None:
        super().__init__()
        self.down1, self.down2 = (
            nn.Sequential(*conv_norm(3, w)),
            nn.Sequential(*conv_norm(w, 2 * w)),
        )
        self.deep = nn.Sequential(*conv_norm(2 * w, 4 * w))
        self.up2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2)
        self.up1 = nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.join2 = nn.Sequential(*conv_norm(4 * w, 2 * w))
        self.join1 = nn.Sequential(*conv_norm(2 * w, w))
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        a = self.down1(image)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.deep(F.max_pool2d(b, 2))
        x = self.join2(torch.cat([self.up2(c), b], 1))
        return self.out(self.join1(torch.cat([self.up1(x), a], 1)))


def unet() -> nn.Module:
    return UNet().eval()


class Generator(nn.Module):
    """Latent vectors [N, 32] to images [N, 3, 32, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64 * 4 * 4)
        ups = [(64, 48), (48, 32), (32, 16)]
        layers = [
            part
            for i, o in ups
            for part in (nn.ConvTranspose2d(i, o, 4, 2, 1), nn.BatchNorm2d(o), nn.ReLU())
        ]
        self.body = nn.Sequential(*layers, nn.Conv2d(16, 3, 3, padding=1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.first(x).view(-1, 64, 4, 4))


def generator() -> nn.Module:
    return Generator().eval()


class MiniYolo(nn.Module):
    """Images [N, 3, 64, 64] to boxes and scores at two scales."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.SiLU
        front = [
            *conv_norm(3, 16, 2, act=act),
            *conv_norm(16, 32, 2, act=act),
            *conv_norm(32, 48, 2, act=act),
        ]
        self.fine, self.coarse = (
            nn.Sequential(*front),
            nn.Sequential(*conv_norm(48, 64, 2, act=act)),
        )
        self.side = nn.Sequential(*conv_norm(64, 48, kernel=1, act=act))
        self.fuse = nn.Sequential(*conv_norm(96, 48, act=act))
        self.heads = nn.ModuleList(
            nn.Conv2d(i, o, 1) for i, o in ((48, 4), (48, 8), (64, 4), (64, 8))
        )

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        fine = self.fine(image)
        coarse = self.coarse(fine)
        up = F.interpolate(self.side(coarse), scale_factor=2.0, mode="nearest")
        fine = self.fuse(torch.cat([up, fine], 1))
        a, b, c, d = self.heads
        return a(fine), b(fine).sigmoid(), c(coarse), d(coarse).sigmoid()


def mini_yolo() -> nn.Module:
    return MiniYolo().eval()


def stacked() -> Iterator[dict[str, Tensor]]:
    """Samples that are whole batches, for `--data modules:stacked`."""
    with np.load(STACKED) as file:
        arrays = {name: file[name] for name in file.files}
    for row in zip(*arrays.values(), strict=True):
        yield {name: torch.from_numpy(x) for name, x in zip(arrays, row, strict=True)}
