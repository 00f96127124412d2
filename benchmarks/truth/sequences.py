"""Networks of the truth audit that take series, sounds and texts; see modules.py."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

try:
    from modules import conv_norm  # as the command finds it, with this folder on its path
except ImportError:
    from benchmarks.truth.modules import conv_norm

PACKAGES = "BENCHMARK_PACKAGES"
"""Variable of the environment with the folder of the packages."""


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
        self.convs = nn.Sequential(*conv_norm(1, 16, 2), *conv_norm(16, 32, 2))
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
