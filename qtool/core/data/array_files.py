"""Batches of tensors from .npy and .npz files, and from columns of a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from qtool.core.array_batches import ArrayBatches
from qtool.core.data.batches import to_tensor
from qtool.core.numpy_files import NumpyFiles


@dataclass(frozen=True)
class ArrayFiles(NumpyFiles):
    """See `NumpyFiles`; batches are tensors."""

    def every(self, first: int, step: int) -> Iterator[Any]:
        return (pytree.tree_map(to_tensor, batch) for batch in self.as_arrays(first, step))


@dataclass(frozen=True, eq=False)
class TensorBatches(ArrayBatches):
    """See `ArrayBatches`; batches are tensors."""

    def every(self, first: int, step: int) -> Iterator[Any]:
        return (pytree.tree_map(to_tensor, batch) for batch in self.as_arrays(first, step))
