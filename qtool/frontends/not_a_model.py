"""Why an object is no model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn


def no_model(value: object) -> str:
    """Return why an object is no model, and what to give instead."""
    what = "a model is an nn.Module or an ExportedProgram"
    if isinstance(value, str | Path):
        return f"{what}, not a name; give qtool.load_model({str(value)!r})"
    if isinstance(value, type) and issubclass(value, nn.Module):
        return f"{what}, not a class; give an instance, {value.__name__}(...).eval()"
    if isinstance(value, Mapping) and any(isinstance(v, torch.Tensor) for v in value.values()):
        return f"{what}, not a state dict; build the network and call its load_state_dict"
    if type(value).__name__ == "ModelProto":
        return f"{what}, not an onnx.ModelProto; save it, and give qtool.load_model(path)"
    if isinstance(value, list | tuple) or hasattr(value, "__next__"):
        return f"{what}, not a {type(value).__name__}; the model comes first, then the data"
    if hasattr(value, "plan") and hasattr(value, "export"):
        return f"{what}, not a quantized model; give the float model it was made from"
    kind = type(value).__name__
    return f"{what}, not {'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
