"""Batches of model inputs from any iterable."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool.core.array_batches import (
    Items,
    in_batches_of,
    no_batch,
    whole_arrays,
    whole_texts,
)
from qtool.core.data.arguments import Arguments
from qtool.core.data.batch import Batch, CachedTexts, to_tensor
from qtool.core.data.fixed_inputs import FixedInputs
from qtool.core.data.noise_inputs import Noise
from qtool.core.errors import DataError
from qtool.core.log import log_note
from qtool.core.user_code import attribute

__all__ = ["AHEAD", "Batch", "batches", "peek", "to_batch", "to_tensor", "whole_texts"]

AHEAD = 4
"""Batches that are read before a capture."""


def to_batch(item: Any, accepts: int | None = None) -> Batch:
    """Return one item of the user's data as the arguments of a call.

    A tensor or array is the only argument; a dict holds arguments by name, a tuple or list by
    position.

    Args:
        item: item of the user's data.
        accepts: number of positional arguments that the model takes. Later entries of a tuple are
            dropped, so that (images, labels) of a DataLoader work. None: all are used.

    Raises:
        DataError: the item is of another type.
    """
    if isinstance(item, Batch):
        return item
    if isinstance(item, torch.Tensor | np.ndarray):
        return Batch((to_tensor(item),))
    if isinstance(item, Mapping):
        whole = to_batch(item.whole) if isinstance(item, CachedTexts) else None
        return Batch((), {str(k): pytree.tree_map(to_tensor, v) for k, v in item.items()}, whole)
    if isinstance(item, Sequence) and not isinstance(item, str | bytes) and len(item):
        used = item if accepts is None else item[:accepts]
        return Batch(tuple(pytree.tree_map(to_tensor, v) for v in used))
    raise no_batch(item)


def batches(data: Iterable[Any], model: nn.Module | None = None) -> Iterator[Batch]:
    """Yield the batches of any iterable.

    Args:
        data: items as `to_batch` takes them, or all samples as `whole_arrays` takes them.
        model: whose forward says how many entries of a tuple are arguments.

    Entries of dicts that are labels are left out, unless forward requires them; so are the last
    ones of a tuple longer than the arguments. See `Arguments`.

    A model with a fixed number of samples gets batches of it.

    Raises:
        DataError: `data` is not iterable, an error occurs while it is read, or an item is no
            batch.
    """
    if isinstance(data, nn.Module):
        raise DataError(f"data is a {type(data).__name__}, a model; the model comes first")
    arguments = Arguments.of(model)
    stream = _read(Items(whole_arrays(data, arguments)), model, arguments)
    size = _fixed_batch_size(model)
    return stream if size is None else batches_of_size(size, stream)


def peek(data: Iterable[Any], model: nn.Module | None = None) -> tuple[list[Batch], Iterable[Any]]:
    """Return the first batches, whose sizes show which vary, and data that still begins with them.

    Returns:
        (The first `AHEAD` batches, or one if the data can be read only once; the data itself if it
        can be read again, else a chained iterator.)

    Raises:
        DataError: see `batches`.
    """
    data = whole_arrays(data, None if model is None else Arguments.of(model))
    once = iter(data) is data
    stream = batches(data, model)
    first = list(itertools.islice(stream, 1 if once else AHEAD))
    return first, itertools.chain(first, stream) if once else data


def _read(items: Items, model: nn.Module | None, arguments: Arguments) -> Iterator[Batch]:
    fixed, noise = FixedInputs.of(model), Noise.of(model)
    accepts = len(fixed.order) or arguments.positional
    for index, item in enumerate(items):
        batch = to_batch(item, accepts)
        if fixed.values:
            batch = fixed.remove(batch, index)
        batch, note = arguments.of_batch(batch)
        if note is not None and index == 0 and not isinstance(model, fx.GraphModule):
            log_note(note)  # of a captured graph it was said at the capture
        yield batch if noise is None else noise.complete(batch)


def _fixed_batch_size(model: nn.Module | None) -> int | None:
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
