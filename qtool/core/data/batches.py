"""Batches of model inputs from any iterable."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, IterableDataset

from qtool.core.array_batches import whole_arrays, whole_texts
from qtool.core.attributes import attribute
from qtool.core.data.arguments import Arguments
from qtool.core.data.batch import Batch, to_tensor
from qtool.core.data.fixed_inputs import FixedInputs
from qtool.core.errors import DataError, QtoolError, describe
from qtool.core.log import log_note
from qtool.core.remedies import CallEdit, DataEdit
from qtool.core.user_code import user_place

__all__ = ["Batch", "batches", "peek", "to_batch", "to_tensor", "whole_texts"]


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
        return Batch((), {str(k): pytree.tree_map(to_tensor, v) for k, v in item.items()})
    if isinstance(item, Sequence) and not isinstance(item, str | bytes) and len(item):
        used = item if accepts is None else item[:accepts]
        return Batch(tuple(pytree.tree_map(to_tensor, v) for v in used))
    raise DataError(
        f"a batch is a {type(item).__name__}",
        DataEdit(
            "give tensors, tuples of tensors or dicts of tensors (images through a "
            "transform, texts through a tokenizer)"
        ),
    )


def batches(
    data: Iterable[Any],
    model: nn.Module | None = None,
    *,
    inputs: Collection[str] = (),
    size: int | None = None,
) -> Iterator[Batch]:
    """Yield the batches of any iterable.

    Args:
        data: items as `to_batch` takes them, or all samples as `whole_arrays` takes them.
        model: whose forward says how many entries of a tuple are arguments.
        inputs: names of inputs, which are no labels, where there is no model.
        size: number of samples of each batch; None: as the model, or else the data, has it.

    Entries of dicts that are labels are left out, unless forward requires them; so are the last
    ones of a tuple longer than the arguments. See `Arguments`.

    A model with a fixed number of samples gets batches of it.

    Raises:
        DataError: `data` is not iterable, an error occurs while it is read, or an item is no
            batch.
    """
    if isinstance(data, str | Path):
        raise DataError(
            f"data is the name {str(data)!r}", DataEdit(f"give qtool.load_data({str(data)!r})")
        )
    arguments = Arguments(required=frozenset(inputs)) if model is None else Arguments.of(model)
    data = whole_arrays(data, arguments)
    if isinstance(data, nn.Module):
        raise DataError(f"data is a {type(data).__name__}, a model; the model comes first")
    source: Any = data  # mypy finds the method orders of the classes below inconsistent
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset):
        raise DataError(
            f"data is a {type(data).__name__}, a dataset of single samples",
            DataEdit(
                "give DataLoader(data, batch_size=32), or batch_size=None if its items are batches"
            ),
        )
    try:
        iterator = iter(data)
    except TypeError as error:
        call = [CallEdit("call it, and give its result")] if callable(data) else []
        what = f"data of type {type(data).__name__} cannot be iterated over"
        raise DataError(what, *call) from error
    except QtoolError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(f"the data cannot be read: {describe(error)}{user_place(error)}") from error
    size, stream = size or _fixed_batch_size(model), _read(iterator, model, arguments)
    return stream if size is None else in_batches_of(size, stream)


def peek(data: Iterable[Any], model: nn.Module | None = None) -> tuple[Batch | None, Iterable[Any]]:
    """Return the first batch, and data that still begins with it.

    Returns:
        (None if the data is empty, the data itself if it can be read again, else a chained
        iterator).

    Raises:
        DataError: see `batches`.
    """
    data = whole_arrays(data, None if model is None else Arguments.of(model))
    stream = batches(data, model)
    first = next(stream, None)
    if first is None or iter(data) is not data:
        return first, data
    return first, itertools.chain([first], stream)


def _read(
    iterator: Iterator[Any], model: nn.Module | None, arguments: Arguments
) -> Iterator[Batch]:
    fixed = FixedInputs.of(model)
    accepts = len(fixed.order) or arguments.positional
    for index in itertools.count():
        try:
            item = next(iterator)
        except StopIteration:
            return
        except QtoolError:
            raise
        except (Exception, SystemExit) as error:
            why = f"{describe(error)}{user_place(error)}"
            images = "PIL." in why and "collate" in why  # the DataLoader's own message
            edits = [DataEdit("give the dataset a transform that returns tensors")] * images
            raise DataError(f"reading batch {index} failed: {why}", *edits) from error
        batch = to_batch(item, accepts)
        if fixed.values:
            batch = fixed.remove(batch, index)
        batch, note = arguments.of_batch(batch)
        if note is not None and index == 0 and not isinstance(model, fx.GraphModule):
            log_note(note)  # of a captured graph it was said at the capture
        yield batch


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


def in_batches_of(size: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the same samples in batches of a size.

    Batches whose tensors do not have a row per sample stay as they are. Samples at the end that do
    not fill a batch are left out, with a note; all of them stay if they do not fill a single one.
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
    rest = iter([t for _, t in other.tensors()])
    return one.map_tensors(lambda t: torch.cat([t, next(rest)]))
