"""Finds a batch that is one sample."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils import _pytree as pytree

from qtool.core.argument_names import python_only
from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.core.remedies import DataEdit, ModelEdit


def check_samples(model: nn.Module, batch: Batch) -> None:
    """Check that a batch is more than one sample: a vector of floating point numbers for which the
    model computes the same as for a batch of it.

    Raises:
        CaptureError: it is one.
    """
    tensors = batch.tensors()
    if len(tensors) != 1 or tensors[0][1].dim() != 1 or not tensors[0][1].is_floating_point():
        return
    whole = batch.map_tensors(lambda t: t[None])
    try:
        with torch.no_grad():
            one = pytree.tree_leaves(model(*batch.args, **batch.kwargs))
            several = pytree.tree_leaves(model(*whole.args, **whole.kwargs))
        same = all(_is_close(a, b[0]) for a, b in zip(one, several, strict=True))
    except (Exception, SystemExit):  # noqa: BLE001  # the user's code may raise anything
        return
    if same:
        where, tensor = tensors[0]
        raise CaptureError(
            f"{where} is one sample of {len(tensor)} numbers, no batch of samples",
            DataEdit("give batches, {} or those of a DataLoader", "x[None]"),
            DataEdit("give all samples as one array"),
            *python_only(ModelEdit("fix every size with dynamic={}")),
        )


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether outputs agree but for the order of sums, which a batch changes."""
    return one.shape == other.shape and torch.allclose(one, other, 1e-3, 1e-5)
