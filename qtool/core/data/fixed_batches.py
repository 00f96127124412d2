"""Batches for a model with a fixed number of samples, from batches of any size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx, nn

from qtool.core.attributes import attribute
from qtool.core.data.batch import Batch
from qtool.core.errors import DataError
from qtool.core.log import log_note
from qtool.core.remedies import DataEdit


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


def in_batches_of(size: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the same samples in batches of a size.

    Batches whose tensors do not have a row per sample stay as they are. Samples at the end that do
    not fill a batch are left out, with a note; all of them stay if they do not fill a single one.

    Raises:
        DataError: samples that are to be in one batch have different sizes, as texts have.
    """
    left: Batch | None = None
    filled = False
    for batch in batches:
        count = batch.size
        if count == size or any(not t.dim() or len(t) != count for _, t in batch.tensors()):
            filled = True
            yield batch
            continue
        joined = batch if left is None else _joined(left, batch)
        whole = joined.size - joined.size % size
        for start in range(0, whole, size):
            filled = True
            yield _rows(joined, start, start + size)
        left = _rows(joined, whole, joined.size) if whole < joined.size else None
    if left is not None and not filled:
        yield left  # the model says what it takes
    elif left is not None:
        log_note(f"the last {left.size} samples do not fill a batch of {size} and are left out")


def _rows(batch: Batch, start: int, stop: int) -> Batch:
    return batch.map_tensors(lambda t: t[start:stop])


def _joined(one: Batch, other: Batch) -> Batch:
    for (name, first), (_, second) in zip(one.tensors(), other.tensors(), strict=True):
        if first.shape[1:] != second.shape[1:]:
            raise DataError(
                f"the model takes a fixed number of samples at once, and {name} has samples of the "
                f"sizes {list(first.shape[1:])} and {list(second.shape[1:])}",
                DataEdit("pad them to one size"),
            )
    rest = iter([t for _, t in other.tensors()])
    return one.map_tensors(lambda t: torch.cat([t, next(rest)]))
