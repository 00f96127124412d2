"""A session of an ONNX file in onnxruntime-web."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qtool.backends.onnx.storage import model_files
from qtool.backends.onnxruntime.session import OnnxSession
from qtool.backends.pipe_process import FAILED, Message, PipeProcess
from qtool.backends.runtime import Arrays
from qtool.backends.session import Clock
from qtool.core.errors import OptionError, VerificationError
from qtool.core.remedies import Argument
from qtool.core.types import Array
from qtool.plugins.emulators.available import (
    INSTALL_PAGE,
    web_folder,
    web_version,
)

WARM_UP = 1.0
"""Seconds until the engine of node has compiled the kernels that run."""

_SCRIPT = Path(__file__).with_name("serve.mjs")


def problem() -> str:
    """Return what is not installed, and how to install it; "" if node and onnxruntime-web are."""
    if shutil.which("node") is None:
        return f"node is not installed: {INSTALL_PAGE} says how to install it (18 or newer)"
    how = f"{INSTALL_PAGE} says how to install it"
    return "" if web_version() else f"onnxruntime-web is not installed: {how}"


class _NodeProcess(PipeProcess):
    """The process, and the sessions in it that are no longer used."""

    def __init__(self) -> None:
        super().__init__()
        self._unused: list[tuple[int, int]] = []

    def call(self, name: str, arrays: Arrays = (), **fields: Any) -> tuple[Message, Arrays]:
        """Run one call of serve.mjs, and return its response.

        Args:
            name: name of the call.
            arrays: tensors, in the order of a model's inputs.
            fields: the rest of the message.

        Raises:
            VerificationError: node or onnxruntime-web is missing, fails, or ends.
        """
        message, results = self._request({"name": name, **fields}, arrays)
        if FAILED in message:
            raise VerificationError(f"onnxruntime-web {web_version()}: {message[FAILED]}")
        return message, results

    def release(self, process: int, session: int) -> None:
        """Free the memory of a session at the next call.

        Called by the garbage collector, perhaps within a call: it must not wait for the lock.

        Args:
            process: the number in the response to its call "open".
            session: its number there.
        """
        self._unused.append((process, session))

    def _complete(self, message: Message) -> Message:
        unused, self._unused = self._unused, []
        pid = self._process().pid
        return {**message, "unused": [session for process, session in unused if process == pid]}

    def _command(self) -> Sequence[str]:
        return _require_node(), str(_SCRIPT), str(web_folder().resolve())

    def _ended(self, why: str) -> VerificationError:
        return VerificationError(
            f"node, which runs onnxruntime-web, ended with {why}; the model may need more than the "
            "4 GiB of WebAssembly"
        )


def _require_node() -> str:
    """Return the path of node.

    Raises:
        VerificationError: it or onnxruntime-web is not installed.
    """
    program = shutil.which("node")
    if program is None or problem():
        raise VerificationError(problem())
    return program


PROCESS = _NodeProcess()
"""The process for all sessions: files are timed next to each other in one process."""


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
