"""A model and its data in float32, which is what is quantized."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from qtool.core.data import Batch
from qtool.core.errors import CaptureError, describe
from qtool.core.remedies import ModelEdit


def to_float32(model: nn.Module, example: Batch) -> tuple[nn.Module, Batch, tuple[str, ...]]:
    """Return a model and its batch in float32, and notes on what was converted.

    The user's model stays as it is; a copy is converted. Models that mix float32 with other types
    in their parameters stay as they are, with their batch.

    Raises:
        CaptureError: the model cannot be copied.
    """
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if torch.float32 in types and len(types) > 1:
        return model, example, ()
    notes = []
    tensors = (t for t in (*model.parameters(), *model.buffers()) if not is_lazy(t))
    if any(t.is_inference() for t in tensors):
        model = _converted(model)  # torch.export takes no tensors of torch.inference_mode
    if other := types - {torch.float32}:
        notes.append(f"the model is in {_names(other)}: a copy in float32 is quantized")
        model = _converted(model)
    converted = example.to_float32()
    return model, converted, (*notes, *note_on_data(example, converted))


def note_on_data(batch: Batch, converted: Batch) -> tuple[str, ...]:
    """Return a note if a batch has other types than its converted form."""
    before, after = ({t.dtype for _, t in b.tensors()} for b in (batch, converted))
    if other := before - after:
        return (f"the data is in {_names(other)}: it is converted to float32",)
    return ()


def _converted(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model).float()
    except Exception as error:
        raise CaptureError(
            "the model is not in float32, or made under torch.inference_mode, and cannot be copied "
            f"({describe(error)})",
            ModelEdit("make it without that, and give model.float()"),
        ) from error


def _names(types: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(t).removeprefix("torch.") for t in types))
