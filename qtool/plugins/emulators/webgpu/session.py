"""A session of an ONNX file on the GPU, in ONNX Runtime's WebGPU provider."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qtool.backends.onnxruntime.session import OnnxSession
from qtool.backends.session import Clock
from qtool.core.errors import OptionError, VerificationError
from qtool.core.remedies import Argument
from qtool.core.types import Array
from qtool.plugins.emulators.webgpu.gpu_process import PROCESS, problem


class GpuSession:
    """See `Session`: an ONNX file on the GPU.

    Args:
        path: the file.
        threads: 0 or 1.

    Raises:
        OptionError: more threads.
        VerificationError: there is no GPU, or the provider refuses the file.
    """

    def __init__(self, path: str | Path, threads: int = 0) -> None:
        if threads > 1:
            raise OptionError("a GPU has no threads to choose", Argument("--threads", 1))
        if why := problem():
            raise VerificationError(why)
        here = OnnxSession(path)
        self.inputs, self.outputs = here.inputs, here.outputs
        self._path = str(Path(path).resolve())
        PROCESS.call("open", self._path)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        return list(PROCESS.call("run", self._path, arrays)[1])

    def seconds(self, arrays: Sequence[Array], times: int, clock: Clock) -> float:  # noqa: ARG002
        """Return the seconds of some runs, until their outputs are on the CPU."""
        message, _ = PROCESS.call("time", self._path, [np.array(times), *arrays])
        return float(message["seconds"])
