"""Batches for a model with a fixed number of samples, from batches of any size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx, nn

from qtool.core.array_batches import in_batches_of
from qtool.core.attributes import attribute
from qtool.core.data.batch import Batch


def fixed_batch_size(model: nn.Module | None) -> int | None:
    """Return the number of samples that a model takes; None where it is not fixed or not known.

    It is the first size of all inputs: of a captured graph, or as an ONNX file says.
    """
    if isinstance(model, fx.GraphModule):
        values = [n.meta.get("val") for n in model.graph.nodes if n.op == "placeholder"]
        firsts = [v.shape[0] if v.dim() else 0 for v in values if isinstance(v, torch.Tensor)]
        if not firsts or not all(isinstance(size, int) for size in firsts):
            return None  # dynamic
        return int(firsts[0]) if len(set(firsts)) == 1 and firsts[0] else None
    size: int | None = attribute(model, "qtool_fixed_batch")
    return size


def batches_of_size(size: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the same samples in batches of a size, see `in_batches_of`."""
    return in_batches_of(size, batches, _tensors, _with_tensors, torch.cat)


def _tensors(batch: Batch) -> list[torch.Tensor]:
    return [tensor for _, tensor in batch.tensors()]


def _with_tensors(batch: Batch, tensors: Sequence[torch.Tensor]) -> Batch:
    rest = iter(tensors)
    return batch.map_tensors(lambda _: next(rest))
