"""One batch: the arguments of one call of a model."""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from qtool.core.errors import DataError, describe
from qtool.core.remedies import DataEdit
from qtool.core.shape_remedies import unsupported_layout
from qtool.core.types import Array
from qtool.core.user_code import uncompiled

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
"""Kinds of parameters that a caller can name."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The arguments of one call of the model.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        whole: the same texts with an empty KV cache, of a decoder whose batch has their first
            tokens in it; None of other batches.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    whole: Batch | None = None

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

    def arrays(self) -> list[Array]:
        """Return the tensors in order, as NumPy arrays."""
        return [t.detach().cpu().numpy() for _, t in self.tensors()]

    def arguments_of(self, model: nn.Module) -> Mapping[str, Any]:
        """Return the arguments by their names in the model's forward."""
        try:
            return (
                inspect.signature(uncompiled(model).forward)
                .bind(*self.args, **self.kwargs)
                .arguments
            )
        except TypeError as error:
            raise _arguments_error(self, model, error) from error

    def map_tensors(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """Return the batch with a function applied to each tensor."""

        def apply(x: Any) -> Any:
            return function(x) if isinstance(x, torch.Tensor) else x

        args, kwargs = pytree.tree_map(apply, (self.args, self.kwargs))
        return Batch(args, kwargs, self.whole and self.whole.map_tensors(function))

    def to_float32(self) -> Batch:
        """Return the batch with other floating point tensors converted to float32."""
        return self.map_tensors(lambda t: t.float() if t.is_floating_point() else t)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device; itself where all its tensors are there."""
        if all(t.device == device for _, t in self.tensors()):
            return self
        return self.map_tensors(lambda t: t.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Return a copy whose CPU tensors are in pinned memory."""
        return self.map_tensors(lambda t: t.pin_memory() if t.device.type == "cpu" else t)

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
            index: number of the batch, for the message.
        """
        for where, t in self.tensors():
            if (layout := unsupported_layout(t)) is not None:
                raise DataError(f"batch {index}, {where} is {layout[0]}", layout[1])
            if t.dim() and not len(t) and not self.size:
                raise DataError(
                    f"batch {index}, {where} has no samples", DataEdit("remove empty batches")
                )
            if not t.is_floating_point() or bool(torch.isfinite(t.sum())):
                continue  # the sum takes a tenth of the time, and may overflow
            if not bool(torch.isfinite(t).all()):
                nan = bool(torch.isnan(t).any())
                odd = torch.isnan(t) if nan else torch.isinf(t)
                at = f" in its sample {int(odd.nonzero()[0, 0])}" if t.dim() else ""
                raise DataError(
                    f"batch {index}, {where} holds {'NaN' if nan else 'Inf'}{at}",
                    DataEdit("remove or repair that sample"),
                )


class CachedTexts(dict[str, Any]):
    """Arguments by name of a decoder, the first tokens of each text in its KV cache.

    Attributes:
        whole: those of the same texts with an empty cache.
    """

    def __init__(self, arguments: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        self.whole = whole


def to_tensor(value: Any) -> Any:
    """Return an array as a tensor, copied if torch cannot use its memory (read-only, byte order).

    A tensor of torch.inference_mode, which torch.export does not take, is copied, too; anything
    else is returned unchanged.

    Raises:
        DataError: torch has no such type (text, objects).
    """
    if isinstance(value, torch.Tensor) and value.is_inference():
        return value.clone()
    if not isinstance(value, np.ndarray):
        return value
    try:
        native = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])
        return torch.from_numpy(native)
    except TypeError as error:
        raise DataError(
            f"an array of type {value.dtype} cannot be a model input", DataEdit("give numbers")
        ) from error


def _arguments_error(batch: Batch, model: nn.Module, error: TypeError) -> DataError:
    """Return an error that compares the entries of a batch with what a model takes."""
    model = uncompiled(model)
    signature = inspect.signature(model.forward)
    kind = type(model).__name__
    has = f"has {', '.join(batch.kwargs)} and " if batch.kwargs else ""
    return DataError(
        f"a batch {has}does not fit {kind}.forward{signature}: {error}",
        DataEdit("name its entries as the arguments"),
        DataEdit("give tensors or tuples in the order of the arguments"),
    )
