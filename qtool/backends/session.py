"""An open model file, with the interface of ONNX Runtime's sessions whatever its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from qtool.core.errors import VerificationError
from qtool.core.versions import version_of


class Session(Protocol):
    """What `qtool.backends.table.open_model` returns."""

    def get_inputs(self) -> Sequence[Any]:
        """Return the inputs, each with a name, a type and a shape."""

    def get_outputs(self) -> Sequence[Any]:
        """Return the outputs, as the inputs."""

    def run(self, names: None, feed: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        """Return all outputs."""


def feeds(model: Session, arrays: Sequence[np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Return input name -> array, for arrays in the order of the inputs."""
    return {i.name: a for i, a in zip(model.get_inputs(), arrays, strict=True)}


def run(model: Session, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Run one batch and return the outputs; arrays in the order of the inputs.

    Raises:
        VerificationError: the runtime fails.
    """
    try:
        return model.run(None, feeds(model, arrays))
    except VerificationError:
        raise  # names its runtime
    except Exception as error:
        runtime = f"onnxruntime {version_of('onnxruntime')}"
        raise VerificationError(f"{runtime} fails on the model: {error}") from error
