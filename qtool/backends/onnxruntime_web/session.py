"""An ONNX file in onnxruntime-web, behind the interface of an ONNX Runtime session."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnx.storage import model_files
from qtool.backends.onnxruntime.session import session
from qtool.backends.onnxruntime_web.node_process import PROCESS, REMEDY, version
from qtool.backends.session import OtherRuntime
from qtool.core.argument_names import argument
from qtool.core.errors import OptionError

WARM_UP = 1.0
"""Seconds until the engine of node has compiled the kernels that run."""


class WebSession:
    """An ONNX file that node runs, on one thread.

    Args:
        path: the file.
        threads: 0 or 1.

    Raises:
        OptionError: more threads.
        VerificationError: node or onnxruntime-web is missing, or refuses the file.
    """

    def __init__(self, path: str | Path, threads: int = 0) -> None:
        if threads > 1:
            raise OptionError(
                f"onnxruntime-web runs on one thread here; give {argument('--threads', '1')}"
            )
        here = session(path)  # in node inputs have no names for their dimensions
        self._inputs: Sequence[Any] = here.get_inputs()
        self._outputs: Sequence[Any] = here.get_outputs()
        path = Path(path).resolve()
        weights = [[str(f.relative_to(path.parent)), str(f)] for f in model_files(path)[1:]]
        response, _ = PROCESS.call("open", model=str(path), external=weights)
        self._id = int(response["id"])
        self._warm_shapes: tuple[Any, ...] = ()
        weakref.finalize(self, PROCESS.release, response["process"], self._id)

    def get_inputs(self) -> Sequence[Any]:
        return self._inputs

    def get_outputs(self) -> Sequence[Any]:
        return self._outputs

    def run(self, _: None, feed: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        """Return all outputs. The first argument is None, as for ONNX Runtime."""
        return list(PROCESS.call("run", self._arrays(feed), id=self._id)[1])

    def seconds(self, feed: Mapping[str, Any], times: int) -> float:
        """Return the CPU time of some runs in seconds, which node measures after a warm-up."""
        arrays = self._arrays(feed)
        shapes = tuple(a.shape for a in arrays)
        warm = 0.0 if shapes == self._warm_shapes else WARM_UP
        self._warm_shapes = shapes
        response, _ = PROCESS.call("time", arrays, id=self._id, times=times, warm=warm)
        return float(response["seconds"])

    def _arrays(self, feed: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        return [np.asarray(feed[i.name]) for i in self._inputs]


NODE = OtherRuntime("node", "onnxruntime-web in node", version, REMEDY, WebSession)
