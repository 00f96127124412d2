"""OpenVINO: runs files of its target before they are written.

It runs in a process of its own, which it crashes on a few networks (docs/upstream.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends import subprocess_runner
from qtool.backends.openvino.workarounds import OPENVINO_WORKAROUNDS
from qtool.backends.pipe_process import Message
from qtool.backends.runtime import Arrays, ExecutedKernel, Runtime
from qtool.core.errors import VerificationError
from qtool.core.types import Array
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


def _run(path: str | Path, arrays: Arrays) -> list[Array]:
    return list(_RUNNER.call("run", str(path), arrays)[1])


def _executed(path: str | Path) -> tuple[ExecutedKernel, ...]:
    """Return the executed kernels with the nodes that each one fuses.

    OpenVINO adds suffixes to the names of some nodes: `head/WithoutBiases`.
    """
    kernels = []
    for kind, precision, originals in _RUNNER.call("kernels", str(path))[0]["kernels"]:
        if kind in _NO_KERNELS:
            continue
        names = [n for n in originals.split(",") if n]
        bare = {n.removesuffix(suffix) for n in names for suffix in _NAME_SUFFIXES}
        nodes = frozenset({*names, *bare})
        kernels.append(ExecutedKernel(f"{kind} {precision}", precision in _CODES, nodes))
    return tuple(kernels)


def serve() -> None:
    """Answer calls in the subprocess."""
    subprocess_runner.serve({"run": _handle_run, "kernels": _handle_kernels})


def _compile(path: str) -> Any:
    import openvino  # an extra

    try:
        core = openvino.Core()
        return core.compile_model(core.read_model(path), "CPU", _SETTINGS)
    except Exception as error:
        raise VerificationError(f"{path}: OpenVINO does not load it: {error}") from error


def _handle_run(path: str, arrays: Arrays) -> tuple[Message, Arrays]:
    compiled = _compile(path)
    try:
        outputs = compiled(dict(enumerate(arrays)))
    except Exception as error:
        raise VerificationError(f"OpenVINO fails on the model: {error}") from error
    return {}, [np.array(outputs[i]) for i in range(len(compiled.outputs))]


def _handle_kernels(path: str, _: Arrays) -> tuple[Message, Arrays]:
    """Return type, precision and original node names of each executed node."""
    keys = ("layerType", "runtimePrecision", "originalLayersNames")
    nodes = _compile(path).get_runtime_model().get_ordered_ops()
    infos = [{k: str(v.astype(str)) for k, v in node.get_rt_info().items()} for node in nodes]
    return {"kernels": [[info[k] for k in keys] for info in infos]}, ()


def _version() -> str | None:
    return version_of("openvino") or None


OPENVINO = Runtime(
    "openvino",
    "OpenVINO",
    "openvino",
    _version,
    _run,
    _executed,
    workarounds=OPENVINO_WORKAROUNDS,
)
