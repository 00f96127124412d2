"""The inputs that a quantized file has as constants, in its float model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from qtool.backends.formats import open_file
from qtool.backends.onnx.storage import load_outline
from qtool.core.data.fixed_inputs import FixedInputs
from qtool.core.errors import FileError, VerificationError
from qtool.core.remedies import Argument
from qtool.frontends.captured_model import Captured
from qtool.frontends.own_models import FileNetwork


def fixed_inputs_of(file: str | Path, source: str | Path) -> dict[str, Any]:
    """Return the inputs of a float file that are constants in a quantized file made from it.

    Args:
        file: the quantized file.
        source: a float ONNX file; other models have none.

    Returns:
        Input -> value, as for `load_model`.

    Raises:
        VerificationError: the metadata that qtool wrote is damaged.
    """
    if Path(source).suffix != ".onnx" or not (recorded := _recorded(file)):
        return {}
    try:
        model = load_outline(source)
    except FileError:  # who loads the model says why it is unreadable
        return {}
    return {i.name: recorded[i.name] for i in model.graph.input if i.name in recorded}


def check_fixed_inputs(file: str | Path, model: object) -> None:
    """Check that a float model has the same inputs as constants as a quantized file.

    Args:
        file: the quantized file.
        model: the float model; other than of ONNX files it has no such inputs.

    Raises:
        VerificationError: it has not.
    """
    if isinstance(model, Captured):
        model = model.graph.module
    fixed = FixedInputs.of(model) if isinstance(model, torch.nn.Module) else FixedInputs()
    for name, value in _recorded(file).items():
        own = fixed.values.get(name)
        is_open = isinstance(model, FileNetwork) and name in model.inputs
        if is_open or (own is not None and own.tolist() != value):
            there = "open" if own is None else f"fixed to {own.tolist()}"
            raise VerificationError(
                f"input '{name}' is fixed to {value} in {Path(file).name}, and {there} in the "
                "float model",
                Argument("--fix", f"{name}={value}", "load it with {}"),
            )


def _recorded(file: str | Path) -> dict[str, Any]:
    conversion = open_file(file).conversion()
    return {} if conversion is None else dict(conversion.info.fixed_inputs)
