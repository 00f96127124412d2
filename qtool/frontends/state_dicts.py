"""Loads state dicts from files without unpickling."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from qtool.core.downloads import DOWNLOAD, check_archive, check_download
from qtool.core.errors import CaptureError, missing
from qtool.core.file_forms import is_torch_script
from qtool.core.log import log_note
from qtool.core.paths import is_file
from qtool.core.process_lock import silence_logging
from qtool.core.remedies import OtherFile
from qtool.frontends.torch.exported_program import first_line

State = Mapping[str, torch.Tensor]

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params")
"""Keys under which training scripts save a state dict, next to their optimizer's."""

_SAVE = OtherFile(
    "save a state dict with safetensors.torch.save_file or torch.save(model.state_dict(), path)"
)


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a state dict into a model; `.pt` files are read with weights_only=True.

    A state dict inside a checkpoint is taken out, and a prefix that all names of the model have in
    the file (`module.`, `model.`, `_orig_mod.`) is removed; both are logged.

    Raises:
        CaptureError: there is no such file, or it is not a state dict of this model.
    """
    file = Path(path)
    state = _unwrapped(_read(file), file)
    own = model.state_dict()
    fitting = _renamed(state, own, file)
    for name, tensor in own.items():
        if name in fitting and fitting[name].is_complex() and not tensor.is_complex():
            raise CaptureError(f"{file}: {name} is complex, and the model's is not")  # torch casts
    try:
        model.load_state_dict(dict(fitting), strict=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise CaptureError(
            f"{file} does not fit {type(model).__name__}: {lines[min(1, len(lines) - 1)]:.300}",
            OtherFile("give the weights of this model, with the sizes that it was trained with"),
        ) from error


def _read(file: Path) -> Any:
    if not is_file(file):
        raise missing(file, CaptureError, "weights file")
    check_download(file, CaptureError)
    check_archive(file, CaptureError)
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        with silence_logging():
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        why = first_line(error)
        if is_torch_script(file):  # torch's messages advise unpickling
            why = "it is a file of TorchScript"
        elif isinstance(error, pickle.UnpicklingError | IndexError | KeyError | EOFError):
            why = "it is no file of torch.save, damaged, or holds pickled objects"
        message = f"{file} cannot be read as weights ({why})"
        raise CaptureError(message, _SAVE, DOWNLOAD) from error


def _unwrapped(content: Any, file: Path) -> State:
    """Return the state dict in the content of a file.

    Raises:
        CaptureError: there is none.
    """
    if _is_state(content):
        return dict(content)
    inside = content if isinstance(content, Mapping) else {}
    names = [k for k in WRAPPERS if _is_state(inside.get(k))]
    names = names or [k for k, entry in inside.items() if _is_state(entry) and entry]
    if names[:1] and (names[0] in WRAPPERS or len(names) == 1):
        log_note(f"{file} is a checkpoint; its entry '{names[0]}' is the state dict")
        return dict(inside[names[0]])
    entries = ", ".join(map(str, list(inside)[:5]))
    raise CaptureError(
        f"{file} has a {type(content).__name__}{f' of {entries}' if entries else ''}, not a state "
        "dict of tensors",
        _SAVE,
    )


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in value.items()
    )


def _renamed(state: State, own: State, file: Path) -> State:
    """Return the tensors under the model's names: without a prefix that those have in the file, or
    with one that all names of the model have."""
    if not own or set(own) <= set(state):
        return state
    longest = max(own, key=len)
    prefixes = [k[: -len(longest)] for k in state if k.endswith(longest)]
    complete = [p for p in prefixes if all(p + name in state for name in own)]
    if len(complete) == 1:
        prefix = complete[0]
        chosen = {k[len(prefix) :]: t for k, t in state.items() if k.startswith(prefix)}
        rest = len(state) - len(chosen)
        more = f"; {rest} tensors without it are left out" if rest else ""
        log_note(f"{file}: the prefix '{prefix}' of its names is removed{more}")
        return chosen
    prefix = f"{longest.partition('.')[0]}."
    if {prefix + name for name in state} == set(own):
        log_note(f"{file}: its names get the prefix '{prefix}'")
        return {prefix + name: t for name, t in state.items()}
    return state
