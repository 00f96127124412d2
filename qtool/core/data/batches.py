"""Batches of model inputs, from whatever the user has."""

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
"""As transformers calls the input that is 1 for tokens and 0 for padding: [samples, tokens]."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The arguments of one call of the model."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Length of the first dimension of the first tensor that has one."""
        return next((len(t) for _, t in self.tensors() if t.dim()), 1)

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Every tensor with its place ("input 0", "input 'mask'")."""
        found = [(f"input {i}", a) for i, a in enumerate(self.args)]
        found += [(f"input '{k}'", a) for k, a in self.kwargs.items()]
        return [
            (w, t) for w, a in found for t in pytree.tree_leaves(a) if isinstance(t, torch.Tensor)
        ]

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """The tensors, in order, as a runtime takes them."""
        return [t.detach().cpu().numpy() for _, t in self.tensors()]

    def arguments_of(self, model: nn.Module) -> Mapping[str, Any]:
        """Arguments by the names of the model's forward."""
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
        """In memory that a GPU copies from by itself; what is on one already stays."""

        def pin(x: Any) -> Any:
            here = isinstance(x, torch.Tensor) and x.device.type == "cpu"
            return x.pin_memory() if here else x

        return Batch(*pytree.tree_map(pin, (self.args, self.kwargs)))

    def to_bytes(self) -> bytes:
        """For another process; see `from_bytes`."""
        buffer = io.BytesIO()
        torch.save((self.args, self.kwargs), buffer)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Batch:
        """The inverse of `to_bytes`, on the CPU; tensors, numbers and texts in containers.

        Raises:
            DataError: it holds something else.
        """
        try:
            found = torch.load(io.BytesIO(data), "cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise DataError(
                f"a batch cannot be sent to other processes ({describe(error)}); it may hold only "
                "tensors, numbers, tuples, lists and dicts"
            ) from error
        return cls(*found)

    def check_finite(self, index: int) -> None:
        """Raises DataError naming this batch and the input if it holds NaN or Inf, nothing at all,
        or no values that could be looked at."""
        for where, t in self.tensors():
            if (odd := _odd(t)) is not None:
                raise DataError(f"batch {index}, {where} is {odd}; give an ordinary dense tensor")
            if t.dim() and not len(t) and not self.size:
                raise DataError(f"batch {index}, {where} holds no sample; leave such batches out")
            if t.is_floating_point() and not _is_finite(t):
                what = "NaN" if bool(torch.isnan(t).any()) else "Inf"
                raise DataError(
                    f"batch {index}, {where} holds {what}; remove or repair that sample"
                )


def _is_finite(tensor: torch.Tensor) -> bool:
    """By the sum, in a tenth of the time; one by one where that is too large for its type."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _odd(tensor: torch.Tensor) -> str | None:
    """What kind of tensor it is, where it has no values in rows."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return f"sparse ({tensor.layout})"
    return "on the meta device, without values" if tensor.is_meta else None


def to_batch(item: Any, accepts: int | None = None) -> Batch:
    """One item of the user's data as the arguments of a call.

    A tensor or array is the only argument, a dict gives arguments by name, a tuple or list by
    position. Of a tuple longer than the `accepts` arguments that the model takes, the first ones
    are used, so that the (images, labels) of an ordinary DataLoader work as they are.
    """
    if isinstance(item, Batch):
        return item
    if isinstance(item, torch.Tensor | np.ndarray):
        return Batch((_tensor(item),))
    if isinstance(item, Mapping):
        return Batch((), {str(k): pytree.tree_map(_tensor, v) for k, v in item.items()})
    if isinstance(item, Sequence) and not isinstance(item, str | bytes) and len(item):
        taken = item if accepts is None else item[:accepts]
        return Batch(tuple(pytree.tree_map(_tensor, v) for v in taken))
    raise DataError(
        f"a batch is a {type(item).__name__}; give tensors, tuples of tensors or dicts of tensors"
    )


def batches(data: Iterable[Any], model: nn.Module | None = None) -> Iterator[Batch]:
    """The batches of any iterable, one at a time.

    Raises:
        DataError: `data` is not iterable, fails while it is read, or an item is nothing a model
            can take.
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
    """The first batch, None where there is none; and data that still begins with it.

    Data that can be read again is given back as it is.

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
    """The array as a tensor; copied where torch cannot use its memory (read-only, byte order).

    Raises:
        DataError: torch has no such type (text, objects).
    """
    try:
        native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
        return torch.from_numpy(native)
    except TypeError as error:
        raise DataError(
            f"an array of type {array.dtype} is nothing a model takes; give numbers"
        ) from error


def _positional(model: nn.Module) -> int | None:
    """How many positional arguments forward takes; None if any number, or if it does not say."""
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
