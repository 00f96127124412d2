"""Loads state dicts from files without unpickling."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from qtool.core.downloads import check_archive, check_download, unreadable
from qtool.core.errors import CaptureError, missing
from qtool.core.file_forms import is_pickled, is_torch_script
from qtool.core.log import log_note
from qtool.core.paths import is_file
from qtool.core.process_lock import silence_logging
from qtool.core.remedies import ModelEdit, OtherFile, Remedy
from qtool.frontends.torch.exported_program import first_line

State = Mapping[str, torch.Tensor]

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params")
"""Keys under which training scripts save a state dict, next to their optimizer's."""

_SAVE = OtherFile(
    "save a state dict with safetensors.torch.save_file or torch.save(model.state_dict(), path)"
)
_NO_WEIGHTS = {
    ".npy": "an array",
    ".npz": "a file of arrays",
    ".onnx": "a model of its own",
    ".pt2": "a model of its own",
    ".tflite": "a model of its own",
    ".h5": "a file of HDF5, as Keras writes it",
    ".hdf5": "a file of HDF5, as Keras writes it",
    ".keras": "a file of Keras",
    ".pb": "a file of TensorFlow",
    ".json": "a text",
    ".yaml": "a text",
    ".txt": "a text",
    ".csv": "a table",
}
"""Suffix -> what a file is that holds no weights of a module."""
_EXAMPLES = 2  # names that a message shows of the file and of the model


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
    if (problem := _mismatch(fitting, own)) is not None:
        raise CaptureError(f"{file} does not fit {type(model).__name__}: {problem[0]}", *problem[1])
    try:
        model.load_state_dict(dict(fitting), strict=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise CaptureError(
            f"{file} does not fit {type(model).__name__}: {' '.join(lines[1:2]) or lines[0]}"
        ) from error


def _read(file: Path) -> Any:
    if not is_file(file):
        raise missing(file, CaptureError, "weights file")
    check_download(file, CaptureError)
    if (kind := _NO_WEIGHTS.get(file.suffix.lower())) is not None:
        raise CaptureError(f"{file} is {kind}, no state dict", _SAVE)
    check_archive(file, CaptureError)
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        with silence_logging():
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        if is_torch_script(file):  # torch's message advises unpickling, too
            state = f"torch.save(torch.jit.load({str(file)!r}).state_dict(), FILE)"
            raise CaptureError(
                f"{file} is a file of TorchScript, no state dict",
                OtherFile(f"save its state dict, {state}"),
            ) from error
        pickled = isinstance(error, pickle.UnpicklingError)  # torch's message advises unpickling
        if pickled and not is_pickled(file):
            message = f"{file} cannot be read as weights (it is no file of torch.save)"
            raise CaptureError(message, _SAVE) from error
        damaged = isinstance(error, IndexError | KeyError | EOFError)  # of a pickle's opcodes
        why = "it holds pickled objects, which are not loaded" if pickled else first_line(error)
        why = "it is damaged, or not a file of torch.save" if damaged else why
        message = f"{file} cannot be read as weights ({why})"
        raise unreadable(file, message, CaptureError, _SAVE) from error


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
    if len(complete) > 1:
        raise CaptureError(
            f"{file} holds the model's tensors {len(complete)} times, as "
            f"{' and '.join(f'{p}*' for p in sorted(complete))}",
            OtherFile("save one of them"),
        )
    prefix = f"{longest.partition('.')[0]}."
    if {prefix + name for name in state} == set(own):
        log_note(f"{file}: its names get the prefix '{prefix}'")
        return {prefix + name: t for name, t in state.items()}
    return state


def _mismatch(state: State, own: State) -> tuple[str, Sequence[Remedy]] | None:
    """Return how names, sizes and types of a file differ from those of a model, and what to do;
    None if they do not differ."""
    both = [name for name in own if name in state]
    if set(state) != set(own):
        missing = [name for name in own if name not in state]
        foreign = [name for name in state if name not in own]
        sides = (("only in the file", foreign), ("only in the model", missing))
        where = "; ".join(f"{side}: {_some(names)}" for side, names in sides if names)
        weights = OtherFile("give the weights of this model")
        return f"{len(both)} of {len(own)} tensors match ({where})", [weights]
    sizes = [n for n in both if state[n].shape != own[n].shape]
    if sizes:
        name, count = sizes[0], len(own) - len(sizes)
        stored, expected = list(state[name].shape), list(own[name].shape)
        shapes = f"{name} is {stored} in the file and {expected} in the model"
        trained = ModelEdit("give the model the sizes it was trained with")
        return f"{count} of {len(own)} tensors match; {shapes}", [trained]
    for name in both:
        if state[name].is_complex() and not own[name].is_complex():
            return f"{name} is complex, and torch would drop the imaginary part", []
    return None


def _some(names: Iterable[str]) -> str:
    chosen = list(names)
    more = f" and {len(chosen) - _EXAMPLES} more" if len(chosen) > _EXAMPLES else ""
    return ", ".join(chosen[:_EXAMPLES]) + more
