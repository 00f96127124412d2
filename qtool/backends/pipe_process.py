"""A process that answers calls: requests and responses go through two pipes.

Each is two lengths, a message (JSON), which names type and shape of its arrays, and their bytes.
The first call starts the process, which ends with this one.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import struct
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

import numpy as np

from qtool.backends.runtime import Arrays
from qtool.core.errors import VerificationError
from qtool.core.types import Array

Message = dict[str, Any]

FAILED = "failed"
"""Key of the error message in a response."""

_LENGTHS = struct.Struct("<QQ")


class PipeProcess(ABC):
    """A process that lives until this one ends; the first call starts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[int, subprocess.Popen[bytes]] | None = None

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Return the command that starts the process."""

    @abstractmethod
    def _ended(self, why: str) -> VerificationError:
        """Return the error for a process that ended.

        Args:
            why: its exit code or signal.
        """

    def _complete(self, message: Message) -> Message:
        """Return a message as it is sent; called when no other call runs."""
        return message

    def _request(self, message: Message, arrays: Arrays) -> tuple[Message, Arrays]:
        """Send a message and arrays, and return the response.

        The response holds the number of the process as "process", since sessions end with it.

        Raises:
            VerificationError: the process ended; see `_ended`.
        """
        with self._lock:
            process = self._process()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                send(process.stdin, self._complete(message), arrays)
                response, results = receive(process.stdout)
            except (EOFError, BrokenPipeError) as error:
                raise self._ended(self._close(process)) from error
            except BaseException:  # a late response would be read as that of the next call
                process.kill()
                self._close(process)
                raise
        return {**response, "process": process.pid}, results

    def close(self) -> None:
        """End the process; the next call starts another."""
        with self._lock:
            if self._running is not None and self._running[0] == os.getpid():
                self._close(self._running[1])

    def start(self) -> None:
        """Start the process, if none runs."""
        with self._lock:
            self._process()

    def kill(self) -> None:
        """Kill the process: a call of another thread that waits for it fails."""
        if self._running is not None:
            self._running[1].kill()

    def _process(self) -> subprocess.Popen[bytes]:
        """Return the process, a new one after a fork: a forked process shares the pipes."""
        if self._running is None or self._running[0] != os.getpid():
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            process = subprocess.Popen(  # noqa: S603  # our own script
                self._command(), stdin=pipe, stdout=pipe, stderr=null
            )
            self._running = (os.getpid(), process)
            atexit.register(self.close)
        return self._running[1]

    def _close(self, process: subprocess.Popen[bytes]) -> str:
        """Close the pipes of the process and return how it exited."""
        self._running = None
        atexit.unregister(self.close)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # unsent bytes cannot be flushed
                pipe.close()
        code = process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def send(pipe: IO[bytes], message: Message, arrays: Arrays) -> None:
    """Write a message and its arrays, of any shapes and number types."""
    blocks = [np.ascontiguousarray(a).reshape(a.shape) for a in arrays]  # (it makes 0-d arrays 1-d)
    tensors = [[str(a.dtype), a.shape, a.nbytes] for a in blocks]
    text = json.dumps({**message, "tensors": tensors}).encode()
    pipe.write(_LENGTHS.pack(len(text), sum(a.nbytes for a in blocks)) + text)
    for array in blocks:
        pipe.write(array.tobytes())
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[Message, Arrays]:
    """Read a message and its arrays, as `send` writes them.

    Raises:
        EOFError: the other side closed the pipe.
    """
    text, payload = _LENGTHS.unpack(_read_exactly(pipe, _LENGTHS.size))
    message = json.loads(_read_exactly(pipe, text))
    data, arrays, start = _read_exactly(pipe, payload), list[Array](), 0
    for dtype, shape, length in message.pop("tensors", ()):
        part = data[start : start + length]
        arrays.append(np.frombuffer(part, dtype).reshape(shape).copy())
        start += length
    return message, arrays


def _read_exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError("the pipe is closed")
    return data
