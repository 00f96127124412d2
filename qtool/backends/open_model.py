"""A model file of any format as a session: inputs, outputs, and a function that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qtool.backends.onnxruntime.session import session
from qtool.backends.tflite.file import is_tflite
from qtool.backends.tflite.session import LitertSession


def open_model(path: str | Path, threads: int = 0) -> Any:
    """Open a file in the runtime of its format.

    Args:
        path: an ONNX or a TFLite file.
        threads: 0 lets the runtime choose.

    Returns:
        An object with `get_inputs`, `get_outputs` and `run`, as those of ONNX Runtime.

    Raises:
        FileError: not a model.
        VerificationError: the runtime refuses the file, or is not installed.
    """
    return LitertSession(path, threads) if is_tflite(path) else session(path, threads=threads)
