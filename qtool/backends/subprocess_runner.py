"""Calls of a runtime in a subprocess: a crash of the runtime becomes an error message.

Requests and responses go through two pipes, each as two lengths, a message (JSON) and arrays
(`.npz`). The first call starts the subprocess, which ends with its parent.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, Any

import numpy as np

from qtool.backends.runtime import Arrays
from qtool.core.errors import VerificationError, describe

Message = dict[str, Any]
Handler = Callable[[str, Arrays], tuple[Message, Arrays]]
"""Takes a file and arrays, returns a message and arrays."""

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from importlib import import_module
import_module(sys.argv[2]).serve()
"""
_LENGTHS = struct.Struct("<QQ")
_FAILED = "failed"


@dataclass
class SubprocessRunner:
    """A subprocess that runs calls on files.

    Attributes:
        module: its `serve` handles the calls in the subprocess.
        title: of the runtime.
    """

    module: str
    title: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: tuple[int, subprocess.Popen[bytes]] | None = None

    def call(self, name: str, path: str, arrays: Arrays = ()) -> tuple[Message, Arrays]:
        """Run one handler of the subprocess on a file and return its response.

        Raises:
            VerificationError: the runtime failed, with its message, or crashed.
        """
        with self._lock:
            process = self._process()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                _send(process.stdin, {"name": name, "path": path}, arrays)
                message, results = _receive(process.stdout)
            except (EOFError, BrokenPipeError) as error:
                why = self._close(process)
                raise VerificationError(
                    f"{self.title} crashes on the model ({why}), which is a bug in {self.title}; "
                    f"choose another target, or another version of {self.title}"
                ) from error
            except BaseException:  # a late response would be read as that of the next call
                process.kill()
                self._close(process)
                raise
        if _FAILED in message:
            raise VerificationError(message[_FAILED])
        return message, results

    def close(self) -> None:
        """End the subprocess; the next call starts another."""
        with self._lock:
            if self._running is not None and self._running[0] == os.getpid():
                self._close(self._running[1])

    def _process(self) -> subprocess.Popen[bytes]:
        """Return the subprocess, a new one after a fork: a forked process shares the pipes."""
        if self._running is None or self._running[0] != os.getpid():
            arguments = (sys.executable, "-c", _START, json.dumps(sys.path), self.module)
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            started = subprocess.Popen(  # noqa: S603  # this very Python
                arguments, stdin=pipe, stdout=pipe, stderr=null
            )
            self._running = (os.getpid(), started)
            atexit.register(self.close)
        return self._running[1]

    def _close(self, process: subprocess.Popen[bytes]) -> str:
        """Close the pipes of the subprocess and return how it exited."""
        self._running = None
        atexit.unregister(self.close)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # unsent bytes cannot be flushed
                pipe.close()
        code = process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def serve(handlers: Mapping[str, Handler]) -> None:
    """Handle calls by name until the parent closes the pipe."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal sends it to all processes; the parent decides
    requests, responses = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # runtimes print to stdout
    with suppress(EOFError, BrokenPipeError):
        while True:
            request, arrays = _receive(requests)
            try:
                response = handlers[request["name"]](request["path"], arrays)
            except VerificationError as error:
                response = {_FAILED: str(error)}, ()
            except Exception as error:  # noqa: BLE001  # the process goes on
                response = {_FAILED: f"the model does not run: {describe(error)}"}, ()
            _send(responses, *response)


def _send(pipe: IO[bytes], message: Message, arrays: Arrays) -> None:
    packed = BytesIO()
    np.savez(packed, *arrays)
    text = json.dumps(message).encode()
    for part in (_LENGTHS.pack(len(text), packed.tell()), text, packed.getbuffer()):
        pipe.write(part)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> tuple[Message, Arrays]:
    text, packed = _LENGTHS.unpack(_read_exactly(pipe, _LENGTHS.size))
    message = json.loads(_read_exactly(pipe, text))
    with np.load(BytesIO(_read_exactly(pipe, packed)), allow_pickle=False) as arrays:
        return message, [arrays[name] for name in arrays.files]


def _read_exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError("the pipe is closed")
    return data
