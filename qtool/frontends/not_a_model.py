"""Why an object is no model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import FunctionType

import numpy as np
import torch
from torch import nn

from qtool.core.errors import CaptureError
from qtool.core.remedies import CallEdit


def no_model(value: object) -> CaptureError:
    """Return an error that says why an object is no model."""
    what, edit = _described(value)
    edits = () if edit is None else (CallEdit(edit),)
    return CaptureError(f"a model is an nn.Module or an ExportedProgram, not {what}", *edits)


def no_module(source: str, value: object) -> CaptureError:
    """Return an error that says why what a factory returns is no module."""
    if value is None:
        return CaptureError(f"{source} returns None", CallEdit("let it return the model"))
    what, _ = _described(value)
    return CaptureError(
        f"{source} returns {what}", CallEdit("let it return the model, an nn.Module")
    )


def _described(value: object) -> tuple[str, str | None]:
    """Return what an object is, and what to give instead."""
    kind = type(value).__name__
    if isinstance(value, str | Path):
        return "a name", f"give qtool.load_model({str(value)!r})"
    if isinstance(value, type) and issubclass(value, nn.Module):
        return "a class", f"give an instance, {value.__name__}(...).eval()"
    if isinstance(value, Mapping):
        return _described_dict(value)
    if isinstance(owner := getattr(value, "__self__", None), nn.Module):
        return f"a method of a {type(owner).__name__}", "give the module itself"
    if isinstance(value, FunctionType):
        return "a function", "call it if it builds the model, or write it as an nn.Module"
    if kind == "ModelProto":
        return "an onnx.ModelProto", "save it, and give qtool.load_model(path)"
    if kind == "InferenceSession":
        return "an onnxruntime.InferenceSession", "give qtool.load_model(path) of its file"
    if isinstance(value, list | tuple | torch.Tensor | np.ndarray) or hasattr(value, "__iter__"):
        return _described_list(value, kind)
    if hasattr(value, "plan") and hasattr(value, "export"):
        return "a quantized model", "give the float model it was made from"
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}", None


def _described_dict(value: Mapping[object, object]) -> tuple[str, str | None]:
    if _has_tensors(value):
        return "a state dict", "build the network and call its load_state_dict"
    for key, entry in value.items():
        if isinstance(entry, nn.Module):
            return "a dict", f"give the model in it, its entry {key!r}"
        if isinstance(entry, Mapping) and _has_tensors(entry):
            called = f"build the network and call its load_state_dict with the entry {key!r}"
            return "a checkpoint", called
    return "a dict", None


def _described_list(value: object, kind: str) -> tuple[str, str]:
    entries = value if isinstance(value, list | tuple) else ()
    for place, entry in enumerate(entries):
        if isinstance(entry, nn.Module):
            return f"a {kind}", f"give the model in it, its entry {place}"
    return f"a {kind}", "give the model first, then the data"


def _has_tensors(value: Mapping[object, object]) -> bool:
    return any(isinstance(entry, torch.Tensor) for entry in value.values())
