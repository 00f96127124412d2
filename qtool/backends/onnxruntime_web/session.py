"""A session of an ONNX file in onnxruntime-web."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qtool.backends.onnx.storage import model_files
from qtool.backends.onnxruntime.emulation.cache_folder import web_version
from qtool.backends.onnxruntime.session import OnnxSession
from qtool.backends.onnxruntime_web.node_process import PROCESS, problem
from qtool.backends.session import Clock, OtherRuntime
from qtool.core.errors import OptionError
from qtool.core.remedies import Argument
from qtool.core.types import Array

WARM_UP = 1.0
"""Seconds until the engine of node has compiled the kernels that run."""


class WebSession:
    """See `Session`: an ONNX file that node runs, on one thread.

    Args:
        path: the file.
        threads: 0 or 1.

    Raises:
        OptionError: more threads.
        VerificationError: node or onnxruntime-web is missing, or refuses the file.
    """

    def __init__(self, path: str | Path, threads: int = 0) -> None:
        if threads > 1:
            raise OptionError("onnxruntime-web runs on one thread here", Argument("--threads", 1))
        here = OnnxSession(path)  # in node inputs have no names for their dimensions
        self.inputs, self.outputs = here.inputs, here.outputs
        path = Path(path).resolve()
        weights = [[str(f.relative_to(path.parent)), str(f)] for f in model_files(path)[1:]]
        response, _ = PROCESS.call("open", model=str(path), external=weights)
        self._id = int(response["id"])
        self._warm_shapes: tuple[Any, ...] = ()
        weakref.finalize(self, PROCESS.release, response["process"], self._id)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        return list(PROCESS.call("run", arrays, id=self._id)[1])

    def seconds(self, arrays: Sequence[Array], times: int, clock: Clock) -> float:  # noqa: ARG002
        """Return the CPU time of some runs in seconds, which node measures after a warm-up."""
        shapes = tuple(a.shape for a in arrays)
        warm = 0.0 if shapes == self._warm_shapes else WARM_UP
        self._warm_shapes = shapes
        response, _ = PROCESS.call("time", arrays, id=self._id, times=times, warm=warm)
        return float(response["seconds"])


NODE = OtherRuntime("node", "onnxruntime-web in node", web_version, problem, WebSession)
