"""The errors of an object that is no model."""

from __future__ import annotations

from qtool.core.errors import CaptureError
from qtool.core.remedies import CallEdit


def no_model(value: object) -> CaptureError:
    """Return the error of an object that is no model."""
    return CaptureError(
        f"a model is an nn.Module or an ExportedProgram, not {_described(value)}",
        CallEdit("give the module itself, in eval mode; qtool.load_model reads one"),
    )


def no_module(source: str, value: object) -> CaptureError:
    """Return the error of a factory that returns no module."""
    return CaptureError(
        f"{source} returns {_described(value)}", CallEdit("let it return the model, an nn.Module")
    )


def _described(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
