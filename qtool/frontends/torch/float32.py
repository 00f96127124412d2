"""Models and batches in other floating point types, converted to float32."""

from __future__ import annotations

import copy

import torch
from torch import nn

from qtool.core.data import Batch
from qtool.core.errors import CaptureError, describe


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
    if other := types - {torch.float32}:
        notes.append(f"the model is in {_names(other)}: a copy in float32 is quantized")
        model = _converted(model)
    dtypes = {t.dtype for _, t in example.tensors() if t.is_floating_point()}
    if other := dtypes - {torch.float32}:
        notes.append(f"the data is in {_names(other)}: it is converted to float32")
    return model, example.to_float32(), tuple(notes)


def _converted(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model).float()
    except Exception as error:
        raise CaptureError(
            f"the model is not in float32 and cannot be copied ({describe(error)}); give "
            "model.float()"
        ) from error


def _names(types: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(t).removeprefix("torch.") for t in types))
