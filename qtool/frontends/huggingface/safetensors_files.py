"""Weights in safetensors files, memory-mapped: one file, or shards with an index."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

import safetensors
import torch

from qtool.core.downloads import DOWNLOAD, check_download
from qtool.core.errors import CaptureError
from qtool.core.paths import is_file
from qtool.core.remedies import OtherFile
from qtool.frontends.torch.exported_program import first_line

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
SHARED_LAYERS = 256  # more layers than any model has with the weights of one (ALBERT)


@dataclass(frozen=True)
class StoredTensor:
    """Location of a tensor.

    Attributes:
        file: the safetensors file.
        shape: shape of the tensor.
    """

    file: Path
    shape: tuple[int, ...]


class WeightFiles:
    """The tensors of a model's folder by name; files are mapped, not read.

    Attributes:
        folder: the model's folder.
        tensors: name -> location.
        stacks: name of a tensor that a model makes of them -> its parts.

    Raises:
        CaptureError: a file of the index is missing, truncated, or lacks a tensor.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: dict[str, StoredTensor] = {}
        index = _index(folder)
        for file in sorted(set(index.values())) if index else [folder / _WHOLE]:
            self.tensors |= _tensors_in(file)
        if missing := sorted(set(index) - set(self.tensors)):
            raise CaptureError(
                f"{index[missing[0]]} lacks '{missing[0]}', which the index lists for it", DOWNLOAD
            )

        self.stacks = stacked_experts(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, or of a stack of tensors."""
        if name not in self.stacks:
            return self.tensors[name].shape
        parts = self.stacks[name]
        shapes = [self.tensors[part].shape for part in parts[0]]
        return len(parts), sum(shape[0] for shape in shapes), *shapes[0][1:]

    @property
    def files(self) -> list[Path]:
        """The files, by name."""
        return sorted({stored.file for stored in self.tensors.values()})

    def read(self, name: str, place: tuple[slice, ...] | None = None) -> torch.Tensor:
        """Return a tensor or a slice of it, or of a stack; floats become float32.

        The result is memory-mapped if nothing is converted, sliced or stacked.
        """
        if name in self.stacks:
            experts, *inside = place or (slice(None),)
            chosen = self.stacks[name][experts]
            rows = [torch.cat([self.read(part) for part in parts]) for parts in chosen]
            return torch.stack([each[tuple(inside)] for each in rows])
        with _open(self.tensors[name].file) as file:
            tensor: torch.Tensor = file.get_slice(name)[place] if place else file.get_tensor(name)
        return tensor.float() if tensor.is_floating_point() else tensor


def check_indices(folder: Path) -> None:
    """Check the indices of weights in a folder, of any name.

    Raises:
        CaptureError: one is no index, or names a file outside of the folder.
    """
    for path in sorted(folder.glob("*.safetensors.index.json")):
        _files_in(path)


def check_layers(folder: Path, config: Mapping[str, Any]) -> None:
    """Check that config.json has no more layers than a folder has weights: building them may
    never end.

    Raises:
        CaptureError: it has; names the number of layers.
    """
    for name, count in config.items():
        if isinstance(count, Mapping):
            check_layers(folder, count)
        elif (
            re.search("layers?$", name)
            and isinstance(count, int)
            and count > SHARED_LAYERS
            and count > len(WeightFiles(folder).tensors)
        ):
            raise CaptureError(
                f"{folder / 'config.json'} has {count:,} layers ({name}), more than there are "
                "tensors of weights",
                OtherFile("give the folder that save_pretrained wrote"),
            )


def _index(folder: Path) -> Mapping[str, Path]:
    """Return tensor -> file from the index; empty without an index."""
    path = folder / _INDEX
    return _files_in(path) if is_file(path) else {}


def _files_in(index: Path) -> Mapping[str, Path]:
    """Return tensor -> file of an index."""
    try:
        weight_map = json.loads(index.read_text("utf-8"))["weight_map"]
        names = {str(k): str(v) for k, v in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CaptureError(f"{index} is not an index of weights ({first_line(error)})") from error
    outside = next((v for v in names.values() if v != PureWindowsPath(v).name or v == ".."), None)
    if outside is not None:
        raise CaptureError(
            f"{index} lists weights in {outside!r:.80}",
            OtherFile("give names of files in the same folder"),
        )
    return {name: index.parent / file for name, file in names.items()}


def _tensors_in(file: Path) -> dict[str, StoredTensor]:
    with _open(file) as tensors:
        return {
            name: StoredTensor(file, tuple(tensors.get_slice(name).get_shape()))
            for name in tensors.keys()  # noqa: SIM118  # no dict
        }


def _open(file: Path) -> Any:
    if not is_file(file):
        raise CaptureError(f"{file.parent} lacks {file.name}, which holds weights of the model")
    check_download(file, CaptureError)
    try:
        return safetensors.safe_open(file, "pt")
    except (OSError, safetensors.SafetensorError) as error:
        message = f"{file} is damaged ({first_line(error)})"
        raise CaptureError(message, DOWNLOAD) from error


# Weights of experts that files store one by one, and models of transformers stack.
#
# transformers stacks them while it loads a folder. A model larger than memory is read tensor by
# tensor, so each stacked tensor is put together here from its parts.


_PART = re.compile(r"(?P<scope>.+\.experts)\.(?P<expert>\d+)\.(?P<layer>\w+)\.weight")
_STACKS: Mapping[str, tuple[str, int]] = {
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "down_proj": ("down_proj", 0),
    "w1": ("gate_up_proj", 0),
    "w3": ("gate_up_proj", 1),
    "w2": ("down_proj", 0),
}
"""Layer of an expert in files -> stacked parameter, and place of its rows in that: of Qwen-like and
of Mixtral-like models."""

_FORMER = ".block_sparse_moe."
"""The scope of mixtures in files of Mixtral; ".mlp." in its model."""

Parts = Sequence[Sequence[str]]
"""Names of tensors: those of each expert, in the order of their rows."""


def stacked_experts(names: Collection[str]) -> dict[str, Parts]:
    """Return the stacked parameters of a model -> their parts, of tensors in its files."""
    stacks: dict[str, dict[int, dict[int, str]]] = {}
    for name in names:
        part = _PART.fullmatch(name)
        if part is None or part["layer"] not in _STACKS:
            continue
        stack, place = _STACKS[part["layer"]]
        own = stacks.setdefault(model_name(f"{part['scope']}.{stack}"), {})
        own.setdefault(int(part["expert"]), {})[place] = name
    return {
        stack: [[parts[place] for place in sorted(parts)] for _, parts in sorted(experts.items())]
        for stack, experts in stacks.items()
    }


def model_name(name: str) -> str:
    """Return the name that a model has for a tensor of a mixture in its files."""
    return name.replace(_FORMER, ".mlp.")
