"""Weights in safetensors, looked at without being read: one file, or several with an index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch

from qtool.core.errors import CaptureError
from qtool.core.paths import is_file
from qtool.frontends.torch.exported_program import first_line

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_HASHED_BYTES = 4096  # bytes of the values of each tensor that its mark is made of


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies."""

    file: Path
    shape: tuple[int, ...]


class WeightFiles:
    """The tensors of a model's folder by name; the files are mapped, not read.

    Raises:
        CaptureError: a file that the index names is missing, or cut off, or lacks a tensor.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: dict[str, StoredTensor] = {}
        named = _index(folder)
        for file in sorted(set(named.values())) if named else [folder / _WHOLE]:
            self.tensors |= _tensors_in(file)
        if lost := sorted(set(named) - set(self.tensors)):
            raise CaptureError(
                f"{named[lost[0]]} lacks '{lost[0]}', which the index says is in it; get that file "
                "again"
            )

    @property
    def content_hash(self) -> str:
        """Tells these weights from others: of all names and shapes, and the first values of each
        tensor."""
        digest = hashlib.sha256()
        for name, stored in sorted(self.tensors.items()):
            digest.update(f"{name} {stored.shape}\n".encode())
            with _open(stored.file) as file:
                digest.update(_first_bytes(file.get_slice(name)))
        return digest.hexdigest()[:32]

    def read(self, name: str, place: tuple[slice, ...] | None = None) -> torch.Tensor:
        """A tensor, or a part of it, float32 where it is of a float type; mapped where neither
        conversion nor parts are asked."""
        with _open(self.tensors[name].file) as file:
            found: torch.Tensor = file.get_slice(name)[place] if place else file.get_tensor(name)
        return found.float() if found.is_floating_point() else found


def _index(folder: Path) -> Mapping[str, Path]:
    """Tensor -> the file that the index says it is in; nothing without an index."""
    path = folder / _INDEX
    if not is_file(path):
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))["weight_map"]
        files = {str(k): folder / Path(str(v)).name for k, v in found.items()}
    except (OSError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise CaptureError(f"{path} is no index of weights ({first_line(error)})") from error
    return files


def _tensors_in(file: Path) -> dict[str, StoredTensor]:
    with _open(file) as opened:
        return {
            name: StoredTensor(file, tuple(opened.get_slice(name).get_shape()))
            for name in opened.keys()  # noqa: SIM118  # no dict
        }


def _open(file: Path) -> Any:
    if not is_file(file):
        raise CaptureError(f"{file.parent} lacks {file.name}, which holds weights of the model")
    try:
        return safetensors.safe_open(file, "pt")
    except (OSError, safetensors.SafetensorError) as error:
        raise CaptureError(
            f"{file} is damaged or cut off ({first_line(error)}); get that file again"
        ) from error


def _first_bytes(stored: Any) -> bytes:
    shape = stored.get_shape()
    if not shape or 0 in shape:
        return b""
    row = stored[: max(1, _HASHED_BYTES // max(1, _width(shape)))].contiguous().view(-1)
    taken = row[:_HASHED_BYTES].view(torch.uint8)[:_HASHED_BYTES]
    return bytes(taken.numpy().data)


def _width(shape: list[int]) -> int:
    width = 4
    for size in shape[1:]:
        width *= size
    return width
