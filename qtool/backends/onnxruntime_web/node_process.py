"""A node process that runs models in onnxruntime-web; its calls are those of serve.mjs."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from qtool.backends.onnxruntime.emulation.cache_folder import web_folder, web_version
from qtool.backends.runtime import Arrays
from qtool.core.errors import VerificationError

_SCRIPT = Path(__file__).with_name("serve.mjs")
_LENGTHS = struct.Struct("<QQ")
_FAILED = "failed"
_REMEDY = "`qtool emulators install --web` installs onnxruntime-web for it"


def version() -> str | None:
    """Return the version of onnxruntime-web, None if it or node is not installed."""
    return None if shutil.which("node") is None else web_version() or None


class NodeProcess:
    """A process that lives until this one ends; the first call starts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[int, subprocess.Popen[bytes]] | None = None
        self._unused: list[int] = []

    def call(self, name: str, arrays: Arrays = (), **fields: Any) -> tuple[dict[str, Any], Arrays]:
        """Run one call of serve.mjs, and return its response.

        Args:
            name: of the call.
            arrays: tensors, in the order of a model's inputs.
            fields: the rest of the message.

        Raises:
            VerificationError: node or onnxruntime-web is missing, fails, or ends.
        """
        with self._lock:
            process = self._process()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                unused, self._unused = self._unused, []
                _send(process.stdin, {"name": name, "unused": unused, **fields}, arrays)
                message, results = _receive(process.stdout)
            except (EOFError, BrokenPipeError) as error:
                code = self._close(process)
                raise VerificationError(
                    f"node, which runs onnxruntime-web, ended with exit code {code}; the model may "
                    "need more than the 4 GiB of WebAssembly"
                ) from error
            except BaseException:  # a late response would be read as that of the next call
                process.kill()
                self._close(process)
                raise
        if _FAILED in message:
            raise VerificationError(f"onnxruntime-web {version()}: {message[_FAILED]}")
        return {**message, "process": process.pid}, results

    def release(self, process: int, session: int) -> None:
        """Free the memory of a session at the next call.

        Called by the garbage collector, perhaps within a call: it must not wait for the lock.

        Args:
            process: the number in the response to its call "open".
            session: its number there.
        """
        if self._running is not None and self._running[1].pid == process:
            self._unused.append(session)

    def close(self) -> None:
        """End the process; the next call starts another."""
        with self._lock:
            if self._running is not None and self._running[0] == os.getpid():
                self._close(self._running[1])

    def _process(self) -> subprocess.Popen[bytes]:
        """Return the process, a new one after a fork: a forked process shares the pipes."""
        if self._running is None or self._running[0] != os.getpid():
            pipe = subprocess.PIPE
            command = [require_node(), str(_SCRIPT), str(web_folder().resolve())]
            started = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)  # noqa: S603  # our own script
            self._running = (os.getpid(), started)
            atexit.register(self.close)
        return self._running[1]

    def _close(self, process: subprocess.Popen[bytes]) -> int:
        """Close the pipes and return the exit code."""
        self._running, self._unused = None, []
        atexit.unregister(self.close)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # unsent bytes cannot be flushed
                pipe.close()
        return process.wait()


def require_node() -> str:
    """Return the path of node.

    Raises:
        VerificationError: it or onnxruntime-web is not installed.
    """
    program = shutil.which("node")
    if program is None:
        raise VerificationError(
            f"node is not installed: install it (version 18 or newer); {_REMEDY}"
        )
    if not web_version():
        raise VerificationError(f"onnxruntime-web is not installed: {_REMEDY}")
    return program


PROCESS = NodeProcess()
"""The process for all sessions: files are timed next to each other in one process."""


def _send(pipe: IO[bytes], message: dict[str, Any], arrays: Arrays) -> None:
    plain = [np.ascontiguousarray(a).reshape(a.shape) for a in arrays]  # (it makes 0-d arrays 1-d)
    tensors = [[str(a.dtype), a.shape, a.nbytes] for a in plain]
    text = json.dumps({**message, "tensors": tensors}).encode()
    pipe.write(_LENGTHS.pack(len(text), sum(a.nbytes for a in plain)) + text)
    for array in plain:
        pipe.write(array.tobytes())
    pipe.flush()


def _receive(pipe: IO[bytes]) -> tuple[dict[str, Any], list[np.ndarray[Any, Any]]]:
    text, payload = _LENGTHS.unpack(_read_exactly(pipe, _LENGTHS.size))
    message = json.loads(_read_exactly(pipe, text))
    data = _read_exactly(pipe, payload)
    return message, _arrays(message.get("tensors", ()), data)


def _arrays(tensors: Sequence[Any], data: bytes) -> list[np.ndarray[Any, Any]]:
    """Return arrays of the types and shapes that a response describes."""
    arrays, start = [], 0
    for dtype, shape, length in tensors:
        part = data[start : start + length]
        arrays.append(np.frombuffer(part, dtype).reshape(shape).copy())
        start += length
    return arrays


def _read_exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError("the pipe is closed")
    return data
