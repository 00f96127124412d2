"""OpenVINO, where it is installed: files of its target are run in it before they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qtool.errors import VerificationError
from qtool.runtimes.base import Arrays, Kernel, Run, Runtime
from qtool.versions import version_of

__all__ = ["OPENVINO"]

_SETTINGS = {"INFERENCE_PRECISION_HINT": "f32"}  # bfloat16 where the CPU has it would differ
_NO_KERNELS = ("Const", "Input", "Output")
_CODES = ("u8", "i8")
_MARKS = ("/WithoutBiases", "/WithoutBiases/DequantizationMultiply", "/DequantizationMultiply")


def _compiled(path: str | Path) -> Any:
    import openvino  # an extra

    try:
        core = openvino.Core()
        return core.compile_model(core.read_model(str(path)), "CPU", _SETTINGS)
    except Exception as error:
        raise VerificationError(f"{path}: OpenVINO does not load it: {error}") from error


def _open(path: str | Path) -> Run:
    compiled = _compiled(path)

    def run(arrays: Arrays) -> list[np.ndarray[Any, Any]]:
        try:
            found = compiled(dict(enumerate(arrays)))
        except Exception as error:
            raise VerificationError(f"OpenVINO fails on the model: {error}") from error
        return [np.array(found[i]) for i in range(len(compiled.outputs))]

    return run


def _executed(path: str | Path) -> tuple[Kernel, ...]:
    """OpenVINO names the nodes that it took into a kernel, some with marks of its own behind a
    slash: `head/WithoutBiases`."""
    found = []
    for node in _compiled(path).get_runtime_model().get_ordered_ops():
        told = {key: str(value.astype(str)) for key, value in node.get_rt_info().items()}
        kind, precision = told["layerType"], told["runtimePrecision"]
        if kind in _NO_KERNELS:
            continue
        names = [n for n in told["originalLayersNames"].split(",") if n]
        bare = {n.removesuffix(mark) for n in names for mark in _MARKS}
        codes = precision in _CODES
        found.append(Kernel(f"{kind} {precision}", codes, frozenset({*names, *bare})))
    return tuple(found)


def _version() -> str | None:
    return version_of("openvino") or None


OPENVINO = Runtime("openvino", "OpenVINO", "openvino", _version, _open, _executed)
