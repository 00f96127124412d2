"""Sources of models larger than memory: a folder with safetensors, or an ONNX file with external
data. The graph is built without weights; each weight is read on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from torch import nn

from qtool.backends.onnx.storage import model_files
from qtool.blockwise.checkpoint import file_digest
from qtool.core.errors import CaptureError
from qtool.frontends.huggingface.meta_init import (
    expand_meta_parameters,
    load_without_weights,
    stored_names,
)
from qtool.frontends.huggingface.safetensors_files import WeightFiles
from qtool.frontends.onnx.onnx_file import map_onnx
from qtool.frontends.own_models import FileNetwork


@dataclass(frozen=True)
class ModelSource:
    """A model whose weights are not loaded.

    Attributes:
        fingerprint: hash of all bytes of its files.
        float_bytes: size of its weights; of an ONNX file, of the file with them.
        shards: its weight files; None where the weights are mapped in the model.
        names: attribute of the model -> tensor in the shards.
    """

    model: nn.Module
    fingerprint: str
    float_bytes: int
    shards: WeightFiles | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def read(
        self, attribute: str, value: torch.Tensor, slices: tuple[slice, ...] | None
    ) -> torch.Tensor:
        """Read a stored tensor, or a part of it.

        Args:
            attribute: name of a parameter or buffer of the model.
            value: the tensor of that name in the graph.
            slices: the part to read; None: all.

        Raises:
            CaptureError: no file holds its values.
        """
        part = value if slices is None else value[slices]
        if self.shards is None:
            return part.contiguous()
        if attribute in self.names:
            return self.shards.read(self.names[attribute], slices)
        if value.numel() > 1 and not any(value.stride()):
            raise CaptureError(f"no file of {self.shards.folder} holds '{attribute}'")
        return part  # computed by the model

    def release_memory(self) -> None:
        """Release the memory of tensors that were read."""
        if isinstance(self.model, FileNetwork):
            self.model.external.release()


def open_source(
    path: Path, model: nn.Module | None, task: str | None, attention: str, cache: str
) -> ModelSource:
    """Open a model folder or an ONNX file. task, attention, cache: of `load_without_weights`.

    Raises:
        CaptureError: no such model, or weights are missing.
    """
    if path.suffix == ".onnx":
        if model is not None or task is not None:
            raise CaptureError(f"{path} is a whole model; omit model and task")
        mapped = map_onnx(path)
        size = sum(file.stat().st_size for file in model_files(path))
        return ModelSource(mapped, file_digest(*model_files(path))[:32], size)
    shards = WeightFiles(path)
    if model is None:
        empty = load_without_weights(path, task, attention, cache)
    else:
        empty = expand_meta_parameters(model)
    names = stored_names(empty, shards, every=model is None)
    size = sum(4 * prod(shards.shape(name)) for name in set(names.values()))
    return ModelSource(empty, file_digest(*shards.files)[:32], size, shards, names)
