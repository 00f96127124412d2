"""Models by name, as a command line gives them."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn
from torch.export import ExportedProgram

from qtool.capture.from_onnx import load_onnx
from qtool.capture.program import first_line, load_program
from qtool.data.archives import bomb
from qtool.errors import CaptureError, QtoolError, said
from qtool.graph.alone import quiet

__all__ = ["import_object", "load_model", "load_weights"]


def load_model(source: str, weights: str | Path | None = None) -> nn.Module | ExportedProgram:
    """A model in eval mode from `package.module:factory` (and its weights), a `.pt2` or an `.onnx`
    file.

    Raises:
        CaptureError: nothing is found there, or it is no model, or the weights do not fit.
    """
    if source.endswith((".pt2", ".onnx")):
        if weights is not None:
            raise CaptureError(f"{source} holds its own weights; leave out --weights")
        return load_onnx(source) if source.endswith(".onnx") else load_program(source)
    if ":" not in source:
        raise CaptureError(
            f"'{source}' is no model; give package.module:factory (a function or class that "
            "returns an nn.Module), or a .pt2 or .onnx file"
        )
    made = import_object(source, CaptureError)
    try:
        model = made if isinstance(made, nn.Module) else made()
    except QtoolError:
        raise
    except (Exception, SystemExit) as error:
        raise CaptureError(f"calling {source}() failed: {said(error)}") from error
    if not isinstance(model, nn.Module):
        raise CaptureError(f"{source} gives a {type(model).__name__}, not an nn.Module")
    if weights is not None:
        load_weights(model, weights)
    try:
        return model.eval()
    except RecursionError as error:
        raise CaptureError(
            f"{source} holds itself as a module inside; keep such a reference where torch does not "
            "look for modules, in a list or a dict"
        ) from error


def import_object(source: str, kind: type[QtoolError]) -> Any:
    """What `package.module:name` or `package.module` is; looked for in the current directory first.

    Raises:
        `kind`: it cannot be imported; says why.
    """
    module, colon, name = source.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split(".") if colon else ():
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise kind(f"cannot import {source}: {said(error)}") from error
    return found


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Loads a state dict, strictly. Nothing is unpickled: `.pt` files are read with weights_only.

    Raises:
        CaptureError: no such file, not a state dict, or one of another model.
    """
    file = Path(path)
    if not file.is_file():
        raise CaptureError(f"{file}: no such weights file")
    if (why := bomb(file)) is not None:
        raise CaptureError(f"{file} is not read: {why}")
    try:
        if file.suffix == ".safetensors":
            state: Any = safetensors.torch.load_file(file)
        else:
            with quiet():
                state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        pickled = isinstance(error, pickle.UnpicklingError)  # torch's text advises to unpickle it
        why = "it holds pickled objects, which are not loaded" if pickled else first_line(error)
        raise CaptureError(
            f"{file} cannot be read as weights ({why}); save a state dict with "
            "safetensors.torch.save_file or torch.save(model.state_dict(), path)"
        ) from error
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]  # the form of most training scripts
    if not isinstance(state, Mapping) or not all(
        isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in state.items()
    ):
        raise CaptureError(f"{file} holds a {type(state).__name__}, not a state dict of tensors")
    try:
        model.load_state_dict(dict(state), strict=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise CaptureError(
            f"{file} does not fit {type(model).__name__}: {' '.join(lines[1:3]) or lines[0]}"
        ) from error
