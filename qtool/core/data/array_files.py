"""Batches of tensors from .npy and .npz files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qtool.core.data.batches import to_tensor
from qtool.core.numpy_files import NumpyFiles
from qtool.core.types import Array


@dataclass(frozen=True)
class ArrayFiles(NumpyFiles):
    """See `NumpyFiles`; batches are tensors."""

    @staticmethod
    def convert(rows: Array) -> Any:
        return to_tensor(rows)
