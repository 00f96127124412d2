"""Samples of a part of a network: its inputs in the quantized network and in the float one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from qtool.core.data import Batch
from qtool.core.graph import FloatGraph


@dataclass(frozen=True, eq=False)
class PartBatch(Batch):
    """A batch of a part of a network, with its inputs in the quantized network.

    Attributes:
        exact: the same samples, with the inputs in the float network.
    """

    exact: Batch = field(default_factory=Batch, kw_only=True)

    def map_tensors(self, function: Callable[[torch.Tensor], torch.Tensor]) -> PartBatch:
        """Return the batch with a function applied to each tensor, of both sides."""
        own = super().map_tensors(function)
        return PartBatch(own.args, own.kwargs, exact=self.exact.map_tensors(function))


@dataclass(frozen=True)
class PartSamples:
    """The samples of a part that is converted by itself.

    Attributes:
        training_bytes: budget in bytes for activations kept for backward.
        shared: names of points whose parameters do not change, since other parts have them, too.
        batches: returns `PartBatch`es, which may be read when they are used. It gets the graph of
            the part, the largest numbers of samples of a batch and of all, and whether held-out
            samples are wanted, others (False) or both (None).
    """

    training_bytes: int
    shared: frozenset[str]
    batches: Callable[[FloatGraph, int, int | None, bool | None], Sequence[Batch]]


def float_side(batch: Batch) -> Batch:
    """Return the batch as the float network has it."""
    return batch.exact if isinstance(batch, PartBatch) else batch


def choose_samples(graph: FloatGraph, batch: Batch, chosen: torch.Tensor | slice) -> Batch:
    """Return the chosen samples of a batch, of both sides; see `FloatGraph.samples_of`."""
    own = graph.samples_of(batch, chosen)
    if not isinstance(batch, PartBatch):
        return own
    return PartBatch(own.args, own.kwargs, exact=graph.samples_of(batch.exact, chosen))


def join_batches(graph: FloatGraph, batches: Sequence[Batch]) -> Batch:
    """Return the samples of batches as one, of both sides; see `FloatGraph.join`."""
    own = graph.join(batches)
    if not isinstance(batches[0], PartBatch):
        return own
    return PartBatch(own.args, own.kwargs, exact=graph.join([float_side(each) for each in batches]))
