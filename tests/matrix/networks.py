"""A small network for each kind of operator, each with a linear layer that every mode quantizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

IMAGE, TOKENS, IDS = (3, 12, 12), (10, 24), (10,)
CHANNELS, FEATURES, WORDS, OUTPUTS = 16, 32, 2000, 8
HEADS = 4

Body = Callable[[Any, torch.Tensor], torch.Tensor]


class Images(nn.Module):
    """Convolution, body, linear layer on the mean of each channel."""

    def __init__(self, body: Body, channels: int, **layers: nn.Module) -> None:
        super().__init__()
        self.first, self.body = nn.Conv2d(3, CHANNELS, 3, padding=1), body
        self.head = nn.Linear(channels, OUTPUTS)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(self, self.first(x)).mean((2, 3)))
        return scores


class Tokens(nn.Module):
    """Linear layer, body, linear layer."""

    def __init__(self, body: Body, features: int, **layers: nn.Module) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(TOKENS[1], FEATURES), body
        self.head = nn.Linear(features, OUTPUTS)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(self, self.first(x)))
        return scores


class Words(nn.Module):
    """Embedding, linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 48), nn.Linear(48, OUTPUTS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.table(ids))
        return scores


@dataclass(frozen=True)
class Network:
    """How a network is made, and the shape of a sample."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def samples(self, count: int) -> torch.Tensor:
        """Return samples of unlike size, which share the range of their batch."""
        random = torch.Generator().manual_seed(1)
        if self.shape == IDS:
            return torch.randint(0, WORDS, (count, *self.shape), generator=random)
        size = torch.randn(count, *[1] * len(self.shape), generator=random)
        return torch.randn(count, *self.shape, generator=random) * size.mul(0.5).exp()


def _images(body: Body, channels: int = CHANNELS, **layers: Callable[[], nn.Module]) -> Network:
    return Network(
        lambda: Images(body, channels, **{name: make() for name, make in layers.items()}), IMAGE
    )


def _tokens(body: Body, features: int = FEATURES, **layers: Callable[[], nn.Module]) -> Network:
    return Network(
        lambda: Tokens(body, features, **{name: make() for name, make in layers.items()}), TOKENS
    )


def _conv(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, **options)


def _linear() -> nn.Module:
    return nn.Linear(FEATURES, FEATURES)


def _attention(m: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (m.q, m.k, m.v))
    result: torch.Tensor = m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    return result


NETWORKS: Mapping[str, Network] = {
    "conv": _images(lambda m, x: m.conv(x.relu()), conv=_conv()),
    "depthwise": _images(lambda m, x: m.conv(x.relu()), conv=_conv(groups=CHANNELS)),
    "conv-transpose": _images(
        lambda m, x: m.conv(x.relu()), conv=lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, 2)
    ),
    "add": _images(lambda m, x: m.conv(x) + x, conv=_conv()),
    "mul": _images(lambda m, x: m.conv(x) * x, conv=_conv()),
    "concat": _images(lambda m, x: torch.cat([m.conv(x), x], 1), 2 * CHANNELS, conv=_conv()),
    "average-pool": _images(lambda m, x: m.conv(F.avg_pool2d(x, 2)), conv=_conv()),
    "max-pool": _images(lambda m, x: m.conv(F.max_pool2d(x, 2)), conv=_conv()),
    "global-pool": _images(
        lambda m, x: x * m.conv(F.adaptive_avg_pool2d(x, 1)).sigmoid(), conv=_conv()
    ),
    "silu": _images(lambda m, x: F.silu(x)),
    "hard-swish": _images(lambda m, x: F.hardswish(x)),
    "leaky-relu": _images(lambda m, x: F.leaky_relu(x, 0.1)),
    "gelu": _tokens(lambda m, x: F.gelu(x)),
    "relu": _tokens(lambda m, x: x.relu()),
    "tanh": _tokens(lambda m, x: m.inner(x).tanh(), inner=_linear),
    "softmax": _tokens(lambda m, x: (3 * x).softmax(-1)),
    "layer-norm": _tokens(lambda m, x: m.norm(x), norm=lambda: nn.LayerNorm(FEATURES)),
    "residual": _tokens(lambda m, x: m.inner(F.gelu(x)) + x, inner=_linear),
    "gemm": Network(
        lambda: nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, OUTPUTS)), (24,)
    ),
    "matmul": _tokens(lambda m, x: x @ x.mT @ x),
    "attention": _tokens(_attention, **dict.fromkeys("qkvo", _linear)),
    "lstm": _tokens(lambda m, x: m.rnn(x)[0], rnn=lambda: nn.LSTM(FEATURES, 32, batch_first=True)),
    "bi-lstm": _tokens(
        lambda m, x: m.rnn(x)[0],
        64,
        rnn=lambda: nn.LSTM(FEATURES, 32, batch_first=True, bidirectional=True),
    ),
    "gru": _tokens(lambda m, x: m.rnn(x)[0], rnn=lambda: nn.GRU(FEATURES, 32, batch_first=True)),
    "rnn": _tokens(lambda m, x: m.rnn(x)[0], rnn=lambda: nn.RNN(FEATURES, 32, batch_first=True)),
    "embedding": Network(Words, IDS),
}
