"""Batches of tensors from .npy and .npz files, and from columns of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qtool.core.array_batches import ArrayBatches
from qtool.core.data.batches import to_tensor
from qtool.core.numpy_files import NumpyFiles
from qtool.core.types import Array


@dataclass(frozen=True)
class ArrayFiles(NumpyFiles):
    """See `NumpyFiles`; batches are tensors."""

    @staticmethod
    def convert(rows: Array) -> Any:
        return to_tensor(rows)


@dataclass(frozen=True, eq=False)
class TensorBatches(ArrayBatches):
    """See `ArrayBatches`; batches are tensors."""

    @staticmethod
    def convert(rows: Array) -> Any:
        return to_tensor(rows)
