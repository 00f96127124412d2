"""Activations on disk, batch by batch, of the float and the quantized network."""

from __future__ import annotations

import hashlib
import json
import mmap
import shutil
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch

from qtool.core.atomic import atomic_path
from qtool.core.errors import MALFORMED, FileError
from qtool.core.remedies import OtherFile

Named = Mapping[str, torch.Tensor]
_EXACT, _CODED = "float/", "quantized/"
_LENGTH = 8  # bytes of the header length
_METADATA, _CHECK = "__metadata__", "check"
_KINDS = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}


class ActivationStore:
    """A folder with a file for each batch; tensors equal in both networks are stored once.

    Each file has a checksum of its tensors, its place and the conversion.

    Args:
        conversion: identity of the conversion that the values belong to.
    """

    def __init__(self, folder: Path, conversion: str = "") -> None:
        self.folder, self._conversion = folder, conversion

    def save(self, index: int, exact: Named, coded: Named) -> None:
        """Store a batch.

        Args:
            index: number of the batch.
            exact, coded: tensors by name, in the float and the quantized network.

        Raises:
            FileError: the disk is full.
        """
        self.folder.mkdir(exist_ok=True)
        tensors = {f"{_EXACT}{name}": value.contiguous() for name, value in exact.items()}
        for name, value in coded.items():
            if name not in exact or not _same(exact[name], value):
                tensors[f"{_CODED}{name}"] = value.contiguous()
        addresses: set[int] = set()
        for name, value in tensors.items():  # safetensors refuses tensors that share memory
            if _shared(value) or value.data_ptr() in addresses:
                tensors[name] = value.clone()
            addresses.add(tensors[name].data_ptr())
        with atomic_path(self._file(index)) as temporary:
            try:
                metadata = {_CHECK: self._checksum(index, tensors)}
                safetensors.torch.save_file(tensors, temporary, metadata)
            except safetensors.SafetensorError as error:
                raise OSError(str(error)) from error

    def load(self, index: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the tensors of a batch by name, in the float and the quantized network.

        Raises:
            FileError: the file is missing or damaged.
        """
        file = self._file(index)
        try:
            tensors = self._read(index)
        except (OSError, RuntimeError, *MALFORMED) as error:
            raise FileError(
                f"{file} cannot be read ({error})", OtherFile(f"delete {file.parents[1]}")
            ) from error
        exact = {k.removeprefix(_EXACT): v for k, v in tensors.items() if k.startswith(_EXACT)}
        coded = {k.removeprefix(_CODED): v for k, v in tensors.items() if k.startswith(_CODED)}
        return exact, {**exact, **coded}

    def drop(self, index: int) -> None:
        """Delete a batch."""
        self._file(index).unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete all batches."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, index: int) -> Path:
        return self.folder / f"{index:06}.safetensors"

    def _read(self, index: int) -> dict[str, torch.Tensor]:
        tensors, check = _map(self._file(index))
        if check != self._checksum(index, tensors):
            raise ValueError("its checksum differs")
        return tensors

    def _checksum(self, index: int, tensors: Named) -> str:
        place = f"{self._conversion} {self.folder.name} {index}"
        digest = hashlib.sha256(place.encode())
        for name, value in sorted(tensors.items()):
            digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
            if value.numel():
                digest.update(value.detach().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _map(file: Path) -> tuple[dict[str, torch.Tensor], str]:
    """Read the tensors of a safetensors file through a map of it, and its checksum.

    The library's reader leaks 56 bytes per file (0.8.0; docs/upstream.md), and there is a file for
    each batch and level.
    """
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    start = _LENGTH + int.from_bytes(mapped[:_LENGTH], "little")
    tensors, header = {}, json.loads(mapped[_LENGTH:start])
    for name, stored in header.items():
        if name != _METADATA:
            kind, (first, last) = _KINDS[stored["dtype"]], stored["data_offsets"]
            # torch.frombuffer refuses empty buffers
            flat = torch.empty(0, dtype=kind)
            if last > first:
                count = (last - first) // kind.itemsize
                flat = torch.frombuffer(mapped, dtype=kind, count=count, offset=start + first)
                flat = flat.clone()  # aligned: kernels sum in another order where memory is not
            tensors[name] = flat.reshape(stored["shape"])
    return tensors, header[_METADATA][_CHECK]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or torch.equal(one, other)


def _shared(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a view of a larger storage."""
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
