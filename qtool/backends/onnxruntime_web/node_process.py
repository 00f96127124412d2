"""A node process that runs models in onnxruntime-web; its calls are those of serve.mjs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qtool.backends.onnxruntime.emulation.cache_folder import (
    INSTALL_PAGE,
    web_folder,
    web_version,
)
from qtool.backends.pipe_process import FAILED, Message, PipeProcess
from qtool.backends.runtime import Arrays
from qtool.core.errors import VerificationError

_SCRIPT = Path(__file__).with_name("serve.mjs")


def problem() -> str:
    """Return what is not installed, and how to install it; "" if node and onnxruntime-web are."""
    if shutil.which("node") is None:
        return f"node is not installed: {INSTALL_PAGE} says how to install it (18 or newer)"
    how = f"{INSTALL_PAGE} says how to install it"
    return "" if web_version() else f"onnxruntime-web is not installed: {how}"


class NodeProcess(PipeProcess):
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
        return require_node(), str(_SCRIPT), str(web_folder().resolve())

    def _ended(self, why: str) -> VerificationError:
        return VerificationError(
            f"node, which runs onnxruntime-web, ended with {why}; the model may need more than the "
            "4 GiB of WebAssembly"
        )


def require_node() -> str:
    """Return the path of node.

    Raises:
        VerificationError: it or onnxruntime-web is not installed.
    """
    program = shutil.which("node")
    if program is None or problem():
        raise VerificationError(problem())
    return program


PROCESS = NodeProcess()
"""The process for all sessions: files are timed next to each other in one process."""
