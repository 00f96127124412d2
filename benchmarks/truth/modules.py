"""Networks of the truth audit, as a user has them: functions that qtool is given by name.

The command runs with this folder on its path and loads the weights that the audit wrote. Nothing
here imports qtool.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PACKAGES = "TRUTH_PACKAGES"
"""Variable of the environment with the folder of the packages."""
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


class Tcn(nn.Module):
    """A series [N, 1, 64] to the next value."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 1), (32, 2), (32, 4))
        self.convs = nn.ModuleList(nn.Conv1d(i, 32, 3, padding=d, dilation=d) for i, d in sizes)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.relu(conv(x))
        return self.head(x.mean(-1))


def tcn() -> nn.Module:
    return Tcn().eval()


class PaddedConv(nn.Module):
    """F.pad in front of tall convolutions, BatchNorm behind the ReLU: what CREPE does, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 64, (512, 1), (4, 1)), nn.Conv2d(64, 16, (64, 1))
        self.norms = nn.ModuleList([nn.BatchNorm2d(64), nn.BatchNorm2d(16)])
        self.head = nn.Linear(16 * 64, 36)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None]
        x = self.norms[0](F.relu(self.first(F.pad(x, (0, 0, 254, 254)))))
        x = F.max_pool2d(x, (2, 1), (2, 1))
        x = self.norms[1](F.relu(self.second(F.pad(x, (0, 0, 31, 32)))))
        x = F.max_pool2d(x, (2, 1), (2, 1))
        return self.head(x.permute(0, 2, 1, 3).flatten(1))


def padded_conv() -> nn.Module:
    return PaddedConv().eval()


class Recurrent(nn.Module):
    """[N, T, inputs] to the head's result of the last step."""

    def __init__(self, cell: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def lstm() -> nn.Module:
    return Recurrent(nn.LSTM(1, 64, 2, batch_first=True), 64, 1).eval()


def lstm_tails() -> nn.Module:
    """Power spectrograms into wide input weights."""
    net = Recurrent(nn.LSTM(40, 64, batch_first=True), 64, 16)
    with torch.no_grad():
        net.cell.weight_ih_l0.mul_(40)
    return net.eval()


def gru() -> nn.Module:
    return Recurrent(nn.GRU(8, 48, batch_first=True, bidirectional=True), 96, 6).eval()


class Crnn(nn.Module):
    """Text lines [N, 1, 16, 64] to logits of 20 characters for each of 16 places."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(*_conv(1, 16, 2), *_conv(16, 32, 2))
        self.cell = nn.LSTM(32 * 4, 48, batch_first=True, bidirectional=True)
        self.head = nn.Linear(96, 20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convs(x).flatten(1, 2).transpose(1, 2)
        return self.head(self.cell(x)[0])


def crnn() -> nn.Module:
    return Crnn().eval()


class Tagger(nn.Module):
    """Tokens [N, 24] to logits of 12 tags for each."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(500, 32)
        self.cell = nn.GRU(32, 48, batch_first=True)
        self.head = nn.Linear(48, 12)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.cell(self.table(ids))[0])


def tagger() -> nn.Module:
    return Tagger().eval()


def _conv(
    i: int, o: int, stride: int = 1, *, kernel: int = 3, groups: int = 1, act: type = nn.ReLU
) -> tuple[nn.Module, ...]:
    layer = nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)
    return layer, nn.BatchNorm2d(o), act()


class SmallCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [*_conv(3, 16, act=nn.SiLU), *_conv(16, 32, 2, act=nn.SiLU)]
        self.stem = nn.Sequential(*layers, *_conv(32, 64, 2, act=nn.SiLU))
        self.side = nn.Sequential(*_conv(64, 64, act=nn.SiLU))
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
        wide = [*_conv(i, h, kernel=1, act=act), *_conv(h, h, stride, groups=h, act=act)]
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
        self.stem = nn.Sequential(*_conv(3, 16, 2, act=act))
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
    layers = [*_conv(3, 16, 2), *_conv(16, 32, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return Named(nn.Sequential(*layers, nn.Linear(128, 8))).eval()


class UNet(nn.Module):
    """Images [N, 3, 32, 32] to a mask of logits."""

    def __init__(self, w: int = 12) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Sequential(*_conv(3, w)), nn.Sequential(*_conv(w, 2 * w))
        self.deep = nn.Sequential(*_conv(2 * w, 4 * w))
        self.up2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2)
        self.up1 = nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.join2 = nn.Sequential(*_conv(4 * w, 2 * w))
        self.join1 = nn.Sequential(*_conv(2 * w, w))
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
        front = [*_conv(3, 16, 2, act=act), *_conv(16, 32, 2, act=act), *_conv(32, 48, 2, act=act)]
        self.fine, self.coarse = nn.Sequential(*front), nn.Sequential(*_conv(48, 64, 2, act=act))
        self.side = nn.Sequential(*_conv(64, 48, kernel=1, act=act))
        self.fuse = nn.Sequential(*_conv(96, 48, act=act))
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


class Block(nn.Module):
    """A transformer layer, normalized first."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        parts = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, width))
        return x + self.mlp(self.norm2(x))


class TinyVit(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.place = nn.Parameter(torch.randn(1, 64, width) * 0.1)
        self.blocks = nn.Sequential(*(Block(width, 4, False) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 8)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2) + self.place
        return self.head(self.norm(self.blocks(x)).mean(1))


def tiny_vit() -> nn.Module:
    return TinyVit().eval()


class Text(nn.Module):
    """Tokens [N, 32] to an embedding [N, width], or to logits for each token where `causal`."""

    def __init__(self, vocabulary: int, causal: bool, width: int = 64) -> None:
        super().__init__()
        self.table, self.causal = nn.Embedding(vocabulary, width), causal
        self.place = nn.Parameter(torch.randn(1, 32, width) * 0.1)
        self.blocks = nn.Sequential(*(Block(width, 4, causal) for _ in range(3)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary) if causal else nn.Linear(width, width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.table(ids) + self.place))
        return self.head(x if self.causal else x.mean(1))


def encoder() -> nn.Module:
    return Text(1000, causal=False).eval()


def decoder() -> nn.Module:
    return Text(256, causal=True).eval()


def crepe_tiny() -> nn.Module:
    """The class of torchcrepe, whose other modules ask for libraries of sound."""
    package = types.ModuleType("torchcrepe")
    package.PITCH_BINS = 360  # type: ignore[attr-defined]
    file = Path(os.environ[PACKAGES]) / "torchcrepe" / "model.py"
    spec = importlib.util.spec_from_file_location("torchcrepe.model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get("torchcrepe")
    sys.modules["torchcrepe"] = package
    try:
        spec.loader.exec_module(module)
    finally:
        if before is not None:
            sys.modules["torchcrepe"] = before
    return module.Crepe("tiny").eval()


def stacked() -> Iterator[dict[str, Tensor]]:
    """Samples that are whole batches, for `--data modules:stacked`."""
    with np.load(STACKED) as file:
        arrays = {name: file[name] for name in file.files}
    for row in zip(*arrays.values(), strict=True):
        yield {name: torch.from_numpy(x) for name, x in zip(arrays, row, strict=True)}
