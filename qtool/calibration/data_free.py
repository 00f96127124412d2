"""Data-free calibration: synthetic inputs that reproduce the statistics of BatchNorm layers.

A BatchNorm stores the mean and the variance that each channel had in training. Synthetic inputs are
optimized until the network reproduces them (ZeroQ; Cai et al., 2020), and then used like any
calibration data. Unlike ZeroQ, differences of mean and standard deviation are divided by the
channel's standard deviation, so that every layer and channel has the same weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
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
from qtool.core.remedies import Argument, ModelEdit
from qtool.planning.fake_quantize import insert_probes

SAMPLES, BATCH = 128, 32
ITERATIONS = 150
LEARNING_RATE = 0.1  # of Adam at the start, for inputs that start as standard normal noise
NOTE = (
    "calibrated without data, on {} synthetic inputs generated from the statistics of {} BatchNorm "
    "layers; check accuracy on real data"
)


@dataclass(frozen=True)
class SyntheticData:
    """Synthetic batches.

    Attributes:
        batches: as the model takes them.
        notes: sentences for the user.
    """

    batches: tuple[Any, ...]
    notes: tuple[str, ...]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@dataclass(frozen=True, eq=False)
class _BatchNormStatistics:
    """Training statistics of the input of a BatchNorm.

    Attributes:
        tensor: name of the input.
        mean: float32 [channels].
        std: float32 [channels].
    """

    tensor: str
    mean: torch.Tensor
    std: torch.Tensor

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        """Return the squared difference of a batch's statistics, in units of `std`, averaged."""
        others = [d for d in range(x.dim()) if d != 1]
        mean, std = x.mean(others), x.var(others, unbiased=False).clamp(min=1e-12).sqrt()
        shift, ratio = (mean - self.mean) / self.std, std / self.std
        return shift.square().mean() + (ratio - 1).square().mean()


def synthesize_data(graph: FloatGraph) -> SyntheticData:
    """Generate inputs on which the BatchNorm layers see their training statistics.

    Args:
        graph: as captured, before BatchNorms are folded. Inputs have the sizes of its example, and
            BATCH samples where the batch size is dynamic.

    Raises:
        DataError: the graph has no BatchNorm, or an input that is not float.
    """
    statistics = _batch_norm_statistics(graph.module)
    if not statistics:
        raise DataError(
            "there is no data, and no BatchNorm in the model to generate inputs from (an exporter "
            "may have folded them)",
            Argument("--data", text="give data"),
            ModelEdit("give the model before folding"),
        )
    tensors = graph.tensors_of(Batch(*graph.example))
    for info, tensor in zip(graph.inputs, tensors, strict=True):
        if not tensor.is_floating_point():
            raise DataError(
                f"input '{info.name}' is not float and cannot be generated",
                Argument("--data", text="give data"),
            )
    module = G.clone(graph.module)
    modules = insert_probes(module, {f"{s.tensor}.seen": s.tensor for s in statistics})
    targets = {modules[f"{s.tensor}.seen"]: s for s in statistics}
    sizes = [(BATCH, *t.shape[1:]) if graph.can_split_batches else tuple(t.shape) for t in tensors]
    generator = torch.Generator().manual_seed(0)
    count = math.ceil(SAMPLES / sizes[0][0])
    generated = []
    for _ in track("generating calibration inputs", range(count), count):
        start = [torch.randn(size, generator=generator, dtype=torch.float32) for size in sizes]
        generated.append(graph.call_of(_optimize(graph, module, targets, start)))
    notes = (NOTE.format(count * sizes[0][0], len(statistics)),)
    return SyntheticData(tuple(generated), notes)


def _batch_norm_statistics(module: fx.GraphModule) -> list[_BatchNormStatistics]:
    statistics = []
    for node in batch_norms(module):
        source, mean, variance = G.source(node), G.source(node, 3), G.source(node, 4)
        eps: Any = node.args[EPS_POSITION[node.target]]
        std = (G.tensor(module, variance).detach() + float(eps)).sqrt()
        means = G.tensor(module, mean).detach()
        statistics.append(_BatchNormStatistics(G.name_of(source), means, std))
    return statistics


def _optimize(
    graph: FloatGraph,
    module: nn.Module,
    targets: Mapping[nn.Module, _BatchNormStatistics],
    start: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Return inputs optimized towards the training statistics: Adam with cosine decay."""
    inputs = [t.requires_grad_() for t in start]
    optimizer = torch.optim.Adam(inputs, lr=LEARNING_RATE)
    losses: list[torch.Tensor] = []

    def add_loss(probe: nn.Module, args: Any, output: torch.Tensor) -> None:
        losses.append(targets[probe].loss(output))

    with ExitStack() as hooks:
        for probe in targets:
            hooks.enter_context(probe.register_forward_hook(add_loss))
        for i in range(ITERATIONS):
            rate = LEARNING_RATE * (1 + math.cos(math.pi * i / ITERATIONS)) / 2
            optimizer.param_groups[0]["lr"] = rate
            batch = graph.call_of(inputs)
            losses.clear()
            module(*batch.args, **batch.kwargs)
            gradients = torch.autograd.grad(torch.stack(losses).sum(), inputs)
            for tensor, gradient in zip(inputs, gradients, strict=True):
                tensor.grad = gradient
            optimizer.step()
    return [t.detach() for t in inputs]
