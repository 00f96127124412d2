"""Networks with random weights, and the inputs that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["Network", "ids", "images", "joined", "like_trained", "mask", "noise", "waves"]

Batch = dict[str, torch.Tensor]
Inputs = Callable[[int, torch.Generator], Batch]
BATCHES, BATCH = 3, 4
"""Batches that BatchNorms have their statistics of."""
SCALES = ("layer_scale", "gamma", "skip_gain", "ls1", "ls2", "lambda1")


@dataclass(frozen=True)
class Network:
    """A network of a library.

    Attributes:
        group: of the page.
        build: makes it, with random weights.
        inputs: (number, generator) -> samples by the names of `forward`.
        dynamic: input -> {dimension: name}; the batch alone where it is empty.
    """

    group: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


def like_trained(network: Network) -> nn.Module:
    """Build a network, with the statistics and scales that training leaves.

    BatchNorms have the statistics of their inputs, layer after layer. Layers that are initialized
    to give nothing, or next to nothing, would hide their error and that of all layers before them.
    """
    torch.manual_seed(0)
    model = network.build().eval()
    for name, parameter in model.named_parameters():
        if name.endswith(SCALES):
            if parameter.abs().max() < 0.1:
                nn.init.constant_(parameter, 0.2)
        elif parameter.dim() > 1 and not parameter.any():
            nn.init.xavier_uniform_(parameter)
    generator = torch.Generator().manual_seed(1)
    _estimate_norms(model, [network.inputs(BATCH, generator) for _ in range(BATCHES)])
    return model


def _estimate_norms(model: nn.Module, data: Sequence[Batch]) -> None:
    kind = nn.modules.batchnorm._BatchNorm
    norms = [m for m in model.modules() if isinstance(m, kind) and m.track_running_stats]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    with torch.no_grad():
        for batch in data if norms else ():
            model(**batch)
    model.eval()


def images(*sizes: int, name: str = "x") -> Inputs:
    """Images, clips or volumes that have large shapes and small details, as photographs do."""

    def make(count: int, generator: torch.Generator) -> Batch:
        mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(sizes) - 1]
        image = 0.1 * torch.randn(count, *sizes, generator=generator)
        for cells in (3, 8, 24):
            small = [min(cells, s) for s in sizes[1:]]
            coarse = torch.randn(count, sizes[0], *small, generator=generator)
            image += F.interpolate(coarse, sizes[1:], mode=mode)
        return {name: image / image.std()}

    return make


def noise(*sizes: int, name: str = "x") -> Inputs:
    """Normally distributed values."""
    return lambda n, g: {name: torch.randn(n, *sizes, generator=g)}


def waves(length: int, name: str = "x") -> Inputs:
    """Sums of a few tones with noise, as sound is."""

    def make(count: int, generator: torch.Generator) -> Batch:
        time = torch.arange(length) / 100.0
        tones = torch.rand(count, 6, 1, generator=generator) * 6
        phases = torch.rand(count, 6, 1, generator=generator) * 6
        wave = torch.sin(time * tones + phases).mean(1)
        return {name: wave + 0.02 * torch.randn(count, length, generator=generator)}

    return make


def ids(length: int, vocabulary: int, name: str = "input_ids") -> Inputs:
    """Token ids."""
    return lambda n, g: {name: torch.randint(3, vocabulary, (n, length), generator=g)}


def mask(length: int, name: str = "attention_mask", dtype: torch.dtype = torch.int64) -> Inputs:
    """True (or one) where there is a token, false at the end of the shorter half."""

    def make(count: int, generator: torch.Generator) -> Batch:
        lengths = torch.randint(length // 2, length + 1, (count, 1), generator=generator)
        return {name: (torch.arange(length) < lengths).to(dtype)}

    return make


def joined(*parts: Inputs) -> Inputs:
    """Several inputs."""

    def make(count: int, generator: torch.Generator) -> Batch:
        batch: Batch = {}
        for part in parts:
            batch.update(part(count, generator))
        return batch

    return make
