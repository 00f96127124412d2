"""Why an object is no model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from qtool.core.errors import CaptureError
from qtool.core.remedies import CallEdit


def no_model(value: object) -> CaptureError:
    """Return an error that says why an object is no model."""
    what, edit = _described(value)
    edits = () if edit is None else (CallEdit(edit),)
    return CaptureError(f"a model is an nn.Module or an ExportedProgram, not {what}", *edits)


def _described(value: object) -> tuple[str, str | None]:
    """Return what an object is, and what to give instead."""
    kind = type(value).__name__
    if isinstance(value, str | Path):
        return "a name", f"give qtool.load_model({str(value)!r})"
    if isinstance(value, type) and issubclass(value, nn.Module):
        return "a class", f"give an instance, {value.__name__}(...).eval()"
    if isinstance(value, Mapping) and any(isinstance(v, torch.Tensor) for v in value.values()):
        return "a state dict", "build the network and call its load_state_dict"
    if kind == "ModelProto":
        return "an onnx.ModelProto", "save it, and give qtool.load_model(path)"
    if isinstance(value, list | tuple) or hasattr(value, "__next__"):
        return f"a {kind}", "give the model first, then the data"
    if hasattr(value, "plan") and hasattr(value, "export"):
        return "a quantized model", "give the float model it was made from"
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}", None
