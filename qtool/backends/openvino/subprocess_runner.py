"""A runtime in a process of its own: where it ends that process, qtool goes on and says so.

Questions and answers go through two pipes: two lengths, words (JSON), arrays (`.npz`). The process
is started by the first question and ends with the one that asks.
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
"""A file and arrays to words and arrays."""

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
    """A process that answers questions about files.

    module: whose `serve` answers them there. title: of the runtime.
    """

    module: str
    title: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: tuple[int, subprocess.Popen[bytes]] | None = None

    def call(self, what: str, path: str, arrays: Arrays = ()) -> tuple[Message, Arrays]:
        """The answer to one question about a file.

        Raises:
            VerificationError: with the runtime's own words, or that it ended its process.
        """
        with self._lock:
            process = self._process()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                _send(process.stdin, {"what": what, "path": path}, arrays)
                words, found = _receive(process.stdout)
            except (EOFError, BrokenPipeError) as error:
                why = self._ended(process)
                raise VerificationError(
                    f"{self.title} crashes on the model ({why}), which is a bug in {self.title}; "
                    f"choose another target, or another version of {self.title}"
                ) from error
            except BaseException:  # an answer that comes later would be taken for the next one's
                process.kill()
                self._ended(process)
                raise
        if _FAILED in words:
            raise VerificationError(words[_FAILED])
        return words, found

    def close(self) -> None:
        """Ends the process; the next question starts another."""
        with self._lock:
            if self._running is not None and self._running[0] == os.getpid():
                self._ended(self._running[1])

    def _process(self) -> subprocess.Popen[bytes]:
        """The one that runs; a new one in a process that was forked, which shares its pipes."""
        if self._running is None or self._running[0] != os.getpid():
            arguments = (sys.executable, "-c", _START, json.dumps(sys.path), self.module)
            pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
            started = subprocess.Popen(  # noqa: S603  # this very Python
                arguments, stdin=pipe, stdout=pipe, stderr=nowhere
            )
            self._running = (os.getpid(), started)
            atexit.register(self.close)
        return self._running[1]

    def _ended(self, process: subprocess.Popen[bytes]) -> str:
        """How a process ended that ends, or has no more to do."""
        self._running = None
        atexit.unregister(self.close)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not sent cannot be
                pipe.close()
        code = process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def serve(answers: Mapping[str, Handler]) -> None:
    """Answers questions by their name, until nobody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; who asks decides
    asked, told = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a runtime prints is no answer
    with suppress(EOFError, BrokenPipeError):
        while True:
            question, arrays = _receive(asked)
            try:
                answer = answers[question["what"]](question["path"], arrays)
            except VerificationError as error:
                answer = {_FAILED: str(error)}, ()
            except Exception as error:  # noqa: BLE001  # which is no end of the process
                answer = {_FAILED: f"the model does not run apart: {describe(error)}"}, ()
            _send(told, *answer)


def _send(pipe: IO[bytes], words: Message, arrays: Arrays) -> None:
    packed = BytesIO()
    np.savez(packed, *arrays)
    text = json.dumps(words).encode()
    for part in (_LENGTHS.pack(len(text), packed.tell()), text, packed.getbuffer()):
        pipe.write(part)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> tuple[Message, Arrays]:
    text, packed = _LENGTHS.unpack(_exactly(pipe, _LENGTHS.size))
    words = json.loads(_exactly(pipe, text))
    with np.load(BytesIO(_exactly(pipe, packed)), allow_pickle=False) as found:
        return words, [found[name] for name in found.files]


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    found = pipe.read(count)
    if len(found) < count:
        raise EOFError("the pipe is closed")
    return found
