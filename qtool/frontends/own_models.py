"""Modules that qtool builds itself, as other packages see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from qtool.core.data import Batch

if TYPE_CHECKING:
    from qtool.frontends.data.collators import Collator
    from qtool.frontends.data.rows import Row

TWO_PARTS = (
    "a model with this task has two parts, each of which is quantized alone: parts['encoder'] and "
    "parts['decoder'] of it"
)
BOTH_PARTS = ("text2text-generation-with-past", "automatic-speech-recognition-with-past")
"""Tasks whose model becomes two files, an encoder and a decoder with its KV cache."""
CACHED_TOKENS = 4
"""Tokens of each text that a calibration batch has in its KV cache."""


class FileNetwork(nn.Module):
    """The network of an ONNX file.

    Attributes:
        model: the message.
        external: its external weights.
        inputs: name -> type in the file.
        path: absolute path of the file; None for a model in memory.
        file_bytes: size of the file and of its external data; 0 for a message.
        notes: sentences on what was converted when the file was loaded.
    """

    model: Any
    external: Any
    inputs: Mapping[str, Any]
    path: Path | None = None
    file_bytes = 0
    notes: tuple[str, ...] = ()

    def zero_batch(self, samples: int) -> tuple[torch.Tensor, ...]:
        """Return a batch of zeros with `samples` samples, or with the file's fixed batch size.

        Raises:
            DataError: another dimension is dynamic.
        """
        raise NotImplementedError

    def notes_on_float(self) -> tuple[str, ...]:
        """Return a note for each recurrent layer that ONNX Runtime runs as it is in the file."""
        raise NotImplementedError

    def in_float32(self, batch: Batch) -> Batch:
        """Return a batch in float32 if the floating point inputs of the file are."""
        raise NotImplementedError


class TaskModel(nn.Module):
    """A model of transformers for a task: with a KV cache, or as parts.

    Attributes:
        parts: name -> module that becomes a file of its own; empty where the model is one file.
        has_cache: whether its KV cache is an input and an output.
        refusal: why attention and cache of its layers are not one operator; None where they are.
        last_logits: return the logits of the last token only.
    """

    parts: Mapping[str, TaskModel] = MappingProxyType({})
    has_cache = False
    refusal: str | None = None
    last_logits = False

    @property
    def read_for(self) -> Any:
        """The model whose inputs data is read as.

        Raises:
            DataError: there is none.
        """
        return self

    def collator(self, plain: Collator) -> TaskCollator:
        """Return what makes inputs of this model of samples. plain: samples -> inputs of
        `read_for`."""
        raise NotImplementedError

    def batch_size(self, size: int) -> int:
        """Return the number of samples of a batch. size: wanted."""
        return size

    def quantize_cache(self, data: Any) -> None:
        """Hold the KV cache in int8 from now on, with scales of batches."""
        raise NotImplementedError


@dataclass(frozen=True)
class TaskCollator:
    """Collates samples for a `TaskModel`.

    Attributes:
        collate: samples -> inputs of the plain model.
        model: the model that the inputs are for.
        cached: tokens of each text in its KV cache; 0: whole texts, whose cache is empty.
    """

    collate: Collator
    model: Any
    cached: int = CACHED_TOKENS

    def __call__(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        raise NotImplementedError

    @property
    def dynamic(self) -> Mapping[str, Mapping[int, str]]:
        """Dynamic dimensions of the inputs."""
        raise NotImplementedError
