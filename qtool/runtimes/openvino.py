"""OpenVINO, where it is installed: files of its target are run in it before they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qtool.errors import VerificationError
from qtool.runtimes.base import Arrays, Run, Runtime
from qtool.versions import version_of

__all__ = ["OPENVINO"]

_SETTINGS = {"INFERENCE_PRECISION_HINT": "f32"}  # bfloat16 where the CPU has it would differ


def _open(path: str | Path) -> Run:
    import openvino  # an extra

    try:
        core = openvino.Core()
        compiled: Any = core.compile_model(core.read_model(str(path)), "CPU", _SETTINGS)
    except Exception as error:
        raise VerificationError(f"{path}: OpenVINO does not load it: {error}") from error

    def run(arrays: Arrays) -> list[np.ndarray[Any, Any]]:
        try:
            found = compiled(dict(enumerate(arrays)))
        except Exception as error:
            raise VerificationError(f"OpenVINO fails on the model: {error}") from error
        return [np.array(found[i]) for i in range(len(compiled.outputs))]

    return run


def _version() -> str | None:
    return version_of("openvino") or None


OPENVINO = Runtime("openvino", "OpenVINO", "openvino", _version, _open)
