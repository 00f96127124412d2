"""What to do about errors of a file, for users who have no code to edit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qtool.core.remedies import DataEdit, ModelEdit, OtherFile, Remedy
from qtool.core.shape_remedies import shape_remedies, type_remedies

DYNAMIC_BATCH = OtherFile("export the file with a dynamic batch")


def for_files(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Return remedies for a user who has a file, and no code to edit."""
    own: list[Remedy] = [r for r in remedies if not isinstance(r, ModelEdit | OtherFile)]
    if len(own) < len(remedies):
        own.append(OtherFile("give the PyTorch model that the file was exported from"))
    return own


def batch_remedies(sizes: Sequence[int | str], wanted: str, tensor: torch.Tensor) -> list[Remedy]:
    """Return what to do about a batch of another type or shape: it may only have another number of
    samples.

    Args:
        sizes, wanted: shape and dtype of the input.
        tensor: what the batch has for it.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != wanted and len(sizes) == tensor.dim():
        return [*type_remedies(wanted, dtype, tensor)]
    only = len(sizes) == tensor.dim() and sizes and isinstance(sizes[0], int)
    if only and all(
        isinstance(s, str) or s == n for s, n in zip(sizes[1:], tensor.shape[1:], strict=True)
    ):
        return [DataEdit(f"give at least {sizes[0]} samples"), DYNAMIC_BATCH]
    return [*shape_remedies(sizes, tensor.shape)] or [
        DataEdit("give batches of that type and shape")
    ]
