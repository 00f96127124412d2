"""Batches of model inputs from any iterable."""

from __future__ import annotations

import inspect
import io
import itertools
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from qtool.core.errors import DataError, QtoolError, describe

MASK = "attention_mask"
"""The input that is 1 for tokens and 0 for padding, as in transformers: [samples, tokens]."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The arguments of one call of the model.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Length of the first dimension of the first tensor that has one."""
        return next((len(t) for _, t in self.tensors() if t.dim()), 1)

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return every tensor with the argument it is in ("input 0", "input 'mask'")."""
        arguments = [(f"input {i}", a) for i, a in enumerate(self.args)]
        arguments += [(f"input '{k}'", a) for k, a in self.kwargs.items()]
        return [
            (name, t)
            for name, argument in arguments
            for t in pytree.tree_leaves(argument)
            if isinstance(t, torch.Tensor)
        ]

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Return the tensors in order, as NumPy arrays."""
        return [t.detach().cpu().numpy() for _, t in self.tensors()]

    def arguments_of(self, model: nn.Module) -> Mapping[str, Any]:
        """Return the arguments by their names in the model's forward."""
        try:
            return inspect.signature(model.forward).bind(*self.args, **self.kwargs).arguments
        except TypeError as error:
            raise DataError(
                f"a batch does not fit {type(model).__name__}.forward"
                f"{inspect.signature(model.forward)}: {error}"
            ) from error

    def to(self, device: torch.device) -> Batch:
        def move(x: Any) -> Any:
            return x.to(device, non_blocking=True) if isinstance(x, torch.Tensor) else x

        return Batch(*pytree.tree_map(move, (self.args, self.kwargs)))

    def pin_memory(self) -> Batch:
        """Return a copy whose CPU tensors are in pinned memory."""

        def pin(x: Any) -> Any:
            on_cpu = isinstance(x, torch.Tensor) and x.device.type == "cpu"
            return x.pin_memory() if on_cpu else x

        return Batch(*pytree.tree_map(pin, (self.args, self.kwargs)))

    def to_bytes(self) -> bytes:
        """Serialize for another process; see `from_bytes`."""
        buffer = io.BytesIO()
        torch.save((self.args, self.kwargs), buffer)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Batch:
        """Return the batch of `to_bytes`, on the CPU.

        Raises:
            DataError: it holds more than tensors, numbers and texts in containers.
        """
        try:
            arguments = torch.load(io.BytesIO(data), "cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise DataError(
                f"a batch cannot be sent to other processes ({describe(error)}); it may hold only "
                "tensors, numbers, tuples, lists and dicts"
            ) from error
        return cls(*arguments)

    def check_finite(self, index: int) -> None:
        """Raise DataError if a tensor holds NaN or Inf, has no samples, or is not dense.

        Args:
            index: of the batch, for the message.
        """
        for where, t in self.tensors():
            if (layout := _unsupported_layout(t)) is not None:
                raise DataError(f"batch {index}, {where} is {layout}; give a dense tensor")
            if t.dim() and not len(t) and not self.size:
                raise DataError(f"batch {index}, {where} has no samples; remove empty batches")
            if t.is_floating_point() and not _is_finite(t):
                what = "NaN" if bool(torch.isnan(t).any()) else "Inf"
                raise DataError(
                    f"batch {index}, {where} holds {what}; remove or repair that sample"
                )


def _is_finite(tensor: torch.Tensor) -> bool:
    """Check the sum, in a tenth of the time; each value if the sum overflows."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _unsupported_layout(tensor: torch.Tensor) -> str | None:
    """Return the kind of a tensor that is not dense; None if it is."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return f"sparse ({tensor.layout})"
    return "on the meta device, without values" if tensor.is_meta else None


def to_batch(item: Any, accepts: int | None = None) -> Batch:
    """Return one item of the user's data as the arguments of a call.

    A tensor or array is the only argument; a dict holds arguments by name, a tuple or list by
    position.

    Args:
        item: from the user's data.
        accepts: number of positional arguments that the model takes. Later entries of a tuple are
            dropped, so that (images, labels) of a DataLoader work. None: all are used.

    Raises:
        DataError: the item is of another type.
    """
    if isinstance(item, Batch):
        return item
    if isinstance(item, torch.Tensor | np.ndarray):
        return Batch((_tensor(item),))
    if isinstance(item, Mapping):
        return Batch((), {str(k): pytree.tree_map(_tensor, v) for k, v in item.items()})
    if isinstance(item, Sequence) and not isinstance(item, str | bytes) and len(item):
        used = item if accepts is None else item[:accepts]
        return Batch(tuple(pytree.tree_map(_tensor, v) for v in used))
    raise DataError(
        f"a batch is a {type(item).__name__}; give tensors, tuples of tensors or dicts of tensors"
    )


def batches(data: Iterable[Any], model: nn.Module | None = None) -> Iterator[Batch]:
    """Yield the batches of any iterable.

    Args:
        data: items as `to_batch` takes them.
        model: whose forward says how many entries of a tuple are arguments.

    Raises:
        DataError: `data` is not iterable, an error occurs while it is read, or an item is no
            batch.
    """
    if isinstance(data, torch.Tensor | np.ndarray | Mapping | str):
        raise DataError(
            f"data is a {type(data).__name__}; give an iterable of batches, "
            "for instance [tensor] or a DataLoader"
        )
    try:
        iterator = iter(data)
    except TypeError as error:
        raise DataError(f"data of type {type(data).__name__} cannot be iterated over") from error
    except QtoolError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(f"the data cannot be read: {describe(error)}") from error
    accepts = _positional(model) if model is not None else None
    return _read(iterator, accepts)


def peek(data: Iterable[Any], model: nn.Module | None = None) -> tuple[Batch | None, Iterable[Any]]:
    """Return the first batch, and data that still begins with it.

    Returns:
        (None if the data is empty, the data itself if it can be read again, else a chained
        iterator).

    Raises:
        DataError: see `batches`.
    """
    stream = batches(data, model)
    first = next(stream, None)
    if first is None or iter(data) is not data:
        return first, data
    return first, itertools.chain([first], stream)


def _read(iterator: Iterator[Any], accepts: int | None) -> Iterator[Batch]:
    for index in itertools.count():
        try:
            item = next(iterator)
        except StopIteration:
            return
        except QtoolError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(f"reading batch {index} failed: {describe(error)}") from error
        yield to_batch(item, accepts)


def _tensor(x: Any) -> Any:
    return to_tensor(x) if isinstance(x, np.ndarray) else x


def to_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return the array as a tensor, copied if torch cannot use its memory (read-only, byte order).

    Raises:
        DataError: torch has no such type (text, objects).
    """
    try:
        native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
        return torch.from_numpy(native)
    except TypeError as error:
        raise DataError(
            f"an array of type {array.dtype} cannot be a model input; give numbers"
        ) from error


def _positional(model: nn.Module) -> int | None:
    """Return how many positional arguments forward takes; None if any number or unknown."""
    try:
        kinds = [p.kind for p in inspect.signature(model.forward).parameters.values()]
    except ValueError:  # a compiled one
        return None
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    return sum(
        k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for k in kinds
    )
