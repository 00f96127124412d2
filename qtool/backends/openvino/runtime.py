"""OpenVINO, where it is installed: files of its target are run in it before they are written; in a
process of its own, which it ends on a few networks (docs/upstream.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.openvino import subprocess_runner
from qtool.backends.runtime import Arrays, ExecutedKernel, Runtime
from qtool.core.errors import VerificationError
from qtool.core.versions import version_of

_SETTINGS = {"INFERENCE_PRECISION_HINT": "f32"}  # bfloat16 where the CPU has it would differ
_NO_KERNELS = ("Const", "Input", "Output")
_CODES = ("u8", "i8")
_NAME_SUFFIXES = (
    "/WithoutBiases",
    "/WithoutBiases/DequantizationMultiply",
    "/DequantizationMultiply",
)
_RUNNER = subprocess_runner.SubprocessRunner(__name__, "OpenVINO")


def _run(path: str | Path, arrays: Arrays) -> list[np.ndarray[Any, Any]]:
    return list(_RUNNER.call("run", str(path), arrays)[1])


def _executed(path: str | Path) -> tuple[ExecutedKernel, ...]:
    """OpenVINO names the nodes that it took into a kernel, some with marks of its own behind a
    slash: `head/WithoutBiases`."""
    found = []
    for kind, precision, originals in _RUNNER.call("kernels", str(path))[0]["kernels"]:
        if kind in _NO_KERNELS:
            continue
        names = [n for n in originals.split(",") if n]
        bare = {n.removesuffix(mark) for n in names for mark in _NAME_SUFFIXES}
        codes = precision in _CODES
        found.append(ExecutedKernel(f"{kind} {precision}", codes, frozenset({*names, *bare})))
    return tuple(found)


def serve() -> None:
    """Answers questions in its own process."""
    subprocess_runner.serve({"run": _handle_run, "kernels": _handle_kernels})


def _compiled(path: str) -> Any:
    import openvino  # an extra

    try:
        core = openvino.Core()
        return core.compile_model(core.read_model(path), "CPU", _SETTINGS)
    except Exception as error:
        raise VerificationError(f"{path}: OpenVINO does not load it: {error}") from error


def _handle_run(path: str, arrays: Arrays) -> tuple[subprocess_runner.Message, Arrays]:
    compiled = _compiled(path)
    try:
        found = compiled(dict(enumerate(arrays)))
    except Exception as error:
        raise VerificationError(f"OpenVINO fails on the model: {error}") from error
    return {}, [np.array(found[i]) for i in range(len(compiled.outputs))]


def _handle_kernels(path: str, _: Arrays) -> tuple[subprocess_runner.Message, Arrays]:
    """Of each node that it runs: its kind, its precision, the names it goes back to."""
    keys = ("layerType", "runtimePrecision", "originalLayersNames")
    nodes = _compiled(path).get_runtime_model().get_ordered_ops()
    told = [{k: str(v.astype(str)) for k, v in node.get_rt_info().items()} for node in nodes]
    return {"kernels": [[t[k] for k in keys] for t in told]}, ()


def _version() -> str | None:
    return version_of("openvino") or None


OPENVINO = Runtime("openvino", "OpenVINO", "openvino", _version, _run, _executed)
