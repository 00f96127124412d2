"""Where a model larger than memory comes from: a folder with safetensors, or an ONNX file with its
weights beside it. Its graph is made without them; each is read when it is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from qtool.core.errors import CaptureError
from qtool.frontends.huggingface.meta_init import (
    expand_meta_parameters,
    load_without_weights,
    stored_names,
)
from qtool.frontends.huggingface.safetensors_files import WeightFiles
from qtool.frontends.onnx import OnnxModule, map_onnx

_SAMPLED_ELEMENTS = 1024  # elements of each tensor that a file's mark is made of


@dataclass(frozen=True)
class ModelSource:
    """A model whose weights are not read yet.

    mark: tells it from others. shards: its weights; None where they are mapped in the model. names:
    attributes of the model -> tensors of the shards.
    """

    model: nn.Module
    fingerprint: str
    shards: WeightFiles | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def read(
        self, attribute: str, held: torch.Tensor, place: tuple[slice, ...] | None
    ) -> torch.Tensor:
        """A stored tensor, or a part of it.

        Args:
            attribute: of the model. held: what a graph has under that name, or of that part.

        Raises:
            CaptureError: nothing holds its values.
        """
        if self.shards is None:
            return held.contiguous()
        if attribute in self.names:
            return self.shards.read(self.names[attribute], place)
        if held.numel() > 1 and not any(held.stride()):
            raise CaptureError(f"no file of {self.shards.folder} holds '{attribute}'")
        return held  # as the model made it

    def release_memory(self) -> None:
        """The memory of what was read."""
        if isinstance(self.model, OnnxModule):
            self.model.external.release()


def open_source(path: Path, model: nn.Module | None, task: str | None) -> ModelSource:
    """
    Raises:
        CaptureError: there is no such model, or its weights are not whole.
    """
    if path.suffix == ".onnx":
        if model is not None or task is not None:
            raise CaptureError(f"{path} is a model by itself; leave out model and task")
        found = map_onnx(path)
        return ModelSource(found, _mark(found, path))
    shards = WeightFiles(path)
    empty = load_without_weights(path, task) if model is None else expand_meta_parameters(model)
    return ModelSource(empty, shards.content_hash, shards, stored_names(empty, shards))


def _mark(model: OnnxModule, path: Path) -> str:
    """Of the file, and of the first values of each tensor beside it."""
    digest = hashlib.sha256(path.read_bytes())
    for name, array in sorted(model.external.arrays.items()):
        digest.update(f"{name} {array.shape}\n".encode())
        digest.update(array.reshape(-1)[:_SAMPLED_ELEMENTS].tobytes())
    return digest.hexdigest()[:32]
