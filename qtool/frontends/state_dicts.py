"""Loads state dicts from files without unpickling."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from qtool.core.data.archive_limits import archive_expansion_error
from qtool.core.errors import CaptureError
from qtool.core.graph.process_lock import silence_logging
from qtool.core.paths import is_file
from qtool.frontends.torch.exported_program import first_line


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a state dict strictly; `.pt` files are read with weights_only=True.

    Raises:
        CaptureError: there is no such file, or it is not a state dict of this model.
    """
    file = Path(path)
    if not is_file(file):
        raise CaptureError(f"{file}: no such weights file")
    if (why := archive_expansion_error(file)) is not None:
        raise CaptureError(f"{file} is not read: {why}")
    try:
        if file.suffix == ".safetensors":
            state: Any = safetensors.torch.load_file(file)
        else:
            with silence_logging():
                state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        pickled = isinstance(error, pickle.UnpicklingError)  # torch's message advises unpickling
        why = "it holds pickled objects, which are not loaded" if pickled else first_line(error)
        raise CaptureError(
            f"{file} cannot be read as weights ({why}); save a state dict with "
            "safetensors.torch.save_file or torch.save(model.state_dict(), path)"
        ) from error
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]  # as most training scripts save it
    if not isinstance(state, Mapping) or not all(
        isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in state.items()
    ):
        raise CaptureError(f"{file} has a {type(state).__name__}, not a state dict of tensors")
    own = model.state_dict()
    for name in (k for k, v in state.items() if v.is_complex()):
        if name in own and not own[name].is_complex():
            raise CaptureError(
                f"{file} does not fit {type(model).__name__}: {name} is complex, and torch would "
                "drop the imaginary part"
            )
    try:
        model.load_state_dict(dict(state), strict=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise CaptureError(
            f"{file} does not fit {type(model).__name__}: {' '.join(lines[1:3]) or lines[0]}"
        ) from error
