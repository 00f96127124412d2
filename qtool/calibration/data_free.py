"""Inputs made of what a network remembers of its training data: calibration without data.

A BatchNorm holds the mean and the variance that each channel had in training. Inputs are optimised
until the network has them again (ZeroQ; Cai et al. 2020). They are calibrated on as data would be,
so that ranges, equalization and rounding need nothing of their own for them. Unlike there, scale
and shift of a mean count in widths of its channel, so that every layer and channel weighs the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import DataError
from qtool.core.graph import FloatGraph
from qtool.core.graph.batch_norms import EPS_POSITION, batch_norms
from qtool.core.progress import track
from qtool.core.types import ObserverSpec
from qtool.planning.fake_quantize import insert_probes
from qtool.planning.plan import Probe

aten = torch.ops.aten


SAMPLES, BATCH = 128, 32
ITERATIONS = 150
LEARNING_RATE = (
    0.1  # of Adam at the beginning, in widths of the normal distribution that inputs begin as
)
NOTE = (
    "calibrated without data, on {} inputs distilled from the statistics of {} BatchNorms: nothing "
    "is known of how inputs are distributed, of what is rare in them, and of accuracy on real ones"
)


@dataclass(frozen=True)
class SyntheticData:
    """Batches of inputs, as the network takes them, and what has to be said of them."""

    batches: tuple[Any, ...]
    notes: tuple[str, ...]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@dataclass(frozen=True, eq=False)
class _BatchNormStatistics:
    """What a BatchNorm saw in training of the channels in front of it: float32 [channels]."""

    tensor: str
    mean: torch.Tensor
    std: torch.Tensor

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        """How far a batch is from that, in squared widths, by channel on average."""
        others = [d for d in range(x.dim()) if d != 1]
        mean, width = x.mean(others), x.var(others, unbiased=False).clamp(min=1e-12).sqrt()
        off, ratio = (mean - self.mean) / self.std, width / self.std
        return off.square().mean() + (ratio - 1).square().mean()


def synthesize_data(graph: FloatGraph) -> SyntheticData:
    """Inputs on which the BatchNorms of a network see what they saw in training.

    Args:
        graph: as it was captured, with its BatchNorms. Sizes are those of its example; the number
            of samples is BATCH where it takes any.

    Raises:
        DataError: it has no such BatchNorm, or an input that is not float.
    """
    seen = _batch_norm_statistics(graph.module)
    if not seen:
        raise DataError(
            "there is no data, and no BatchNorm in the model whose statistics tell of it (an "
            "exporter may have folded them); give data, or the model before that"
        )
    tensors = graph.tensors_of(Batch(*graph.example))
    for given, tensor in zip(graph.inputs, tensors, strict=True):
        if not tensor.is_floating_point():
            raise DataError(f"input '{given.name}' is not float and cannot be distilled; give data")
    module = G.clone(graph.module)
    probes = [Probe(f"{s.tensor}.seen", s.tensor, ObserverSpec("mean")) for s in seen]
    watched = insert_probes(module, probes)
    targets = {watched[p.name]: s for p, s in zip(probes, seen, strict=True)}
    sizes = [(BATCH, *t.shape[1:]) if graph.can_split_batches else tuple(t.shape) for t in tensors]
    generator = torch.Generator().manual_seed(0)
    count = math.ceil(SAMPLES / sizes[0][0])
    made = []
    for _ in track("distilling inputs", range(count), count):
        start = [torch.randn(size, generator=generator) for size in sizes]
        made.append(graph.call_of(_optimize(graph, module, targets, start)))
    return SyntheticData(tuple(made), (NOTE.format(count * sizes[0][0], len(seen)),))


def _batch_norm_statistics(module: fx.GraphModule) -> list[_BatchNormStatistics]:
    found = []
    for node in batch_norms(module):
        source, mean, variance = node.args[0], node.args[3], node.args[4]
        assert isinstance(source, fx.Node)
        assert isinstance(mean, fx.Node)
        assert isinstance(variance, fx.Node)
        eps: Any = node.args[EPS_POSITION[node.target]]
        width = (G.tensor(module, variance).detach() + float(eps)).sqrt()
        found.append(
            _BatchNormStatistics(G.name_of(source), G.tensor(module, mean).detach(), width)
        )
    return found


def _optimize(
    graph: FloatGraph,
    module: nn.Module,
    targets: Mapping[nn.Module, _BatchNormStatistics],
    start: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Inputs moved until every watched tensor is as it was in training, about."""
    inputs = [t.requires_grad_() for t in start]
    optimizer = torch.optim.Adam(inputs, lr=LEARNING_RATE)
    distances: list[torch.Tensor] = []

    def look(watch: nn.Module, args: Any, output: torch.Tensor) -> None:
        distances.append(targets[watch].loss(output))

    handles = [watch.register_forward_hook(look) for watch in targets]
    try:
        for i in range(ITERATIONS):
            optimizer.param_groups[0]["lr"] = (
                LEARNING_RATE * (1 + math.cos(math.pi * i / ITERATIONS)) / 2
            )
            batch = graph.call_of(inputs)
            distances.clear()
            module(*batch.args, **batch.kwargs)
            gradients = torch.autograd.grad(torch.stack(distances).sum(), inputs)
            for tensor, gradient in zip(inputs, gradients, strict=True):
                tensor.grad = gradient
            optimizer.step()
    finally:
        for handle in handles:
            handle.remove()
    return [t.detach() for t in inputs]
