"""Calls of a runtime in a subprocess: a crash of the runtime becomes an error message."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from qtool.backends.pipe_process import FAILED, Message, PipeProcess, receive, send
from qtool.backends.runtime import Arrays
from qtool.core.errors import VerificationError, describe
from qtool.core.remedies import CallEdit, OtherFile

Handler = Callable[[str, Arrays], tuple[Message, Arrays]]
"""Takes a file and arrays, returns a message and arrays."""

LOAD_SECONDS, CALL_SECONDS = 30.0, 1800
"""Time limits: of a load, and of a call, which may run a large model on a batch with slow reference
kernels."""
_BYTES = 50e6
"""A load has a second more for so many bytes."""
_HAS_TIMER = hasattr(signal, "setitimer")  # not on Windows
_TIMEOUT = "SIGALRM"

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from importlib import import_module
import_module(sys.argv[2]).serve()
"""


class TimeLimitError(VerificationError):
    """A call that did not end in time."""


class SubprocessRunner(PipeProcess):
    """A subprocess that runs calls on files.

    Args:
        module: its `serve` handles the calls in the subprocess.
        title: name of the runtime for messages.
    """

    def __init__(self, module: str, title: str) -> None:
        super().__init__()
        self.module, self.title = module, title
        self._endless: set[tuple[str, int, int]] = set()  # files that a call did not end on

    def call(self, name: str, path: str, arrays: Arrays = ()) -> tuple[Message, Arrays]:
        """Run one handler of the subprocess on a file and return its response.

        Args:
            name: name of the handler, a key of `serve`'s table.
            path: the file.
            arrays: its inputs, or what else the handler takes.

        Raises:
            VerificationError: the runtime failed, with its message, crashed, or did not finish.
        """
        place = str(Path(path).absolute())  # the process stays in the folder that it started in
        file = (place, *_size_and_time(place))
        if file in self._endless:
            raise self._ended(_TIMEOUT)
        try:
            message, results = self._request({"name": name, "path": place}, arrays)
        except TimeLimitError:
            self._endless.add(file)
            raise
        if FAILED in message:
            raise VerificationError(message[FAILED].replace(place, path))
        return message, results

    def _command(self) -> Sequence[str]:
        return sys.executable, "-c", _START, json.dumps(sys.path), self.module

    def _ended(self, why: str) -> VerificationError:
        again = OtherFile("write the file again")
        if why == _TIMEOUT:
            return TimeLimitError(
                f"{self.title} does not finish (it has {LOAD_SECONDS:.0f} s to load a model and "
                f"{CALL_SECONDS // 60} minutes to run it); the file may be damaged",
                again,
            )
        return VerificationError(
            f"{self.title} crashes on the model ({why}): the file is damaged, or this is a bug in "
            f"{self.title}",
            again,
            CallEdit(f"choose another target or version of {self.title}"),
        )


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process, the subprocess, if it is still in this context after some time.

    The system ends it: code of a runtime that does not return handles no signal in Python.
    """
    if not _HAS_TIMER:
        yield
        return
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, outer)


def loading(path: str) -> AbstractContextManager[None]:
    """End this process, the subprocess, if the load of a file takes too long."""
    return time_limit(LOAD_SECONDS + _size_and_time(path)[0] / _BYTES)


def _size_and_time(path: str) -> tuple[int, int]:
    try:
        status = Path(path).stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def serve(handlers: Mapping[str, Handler]) -> None:
    """Handle calls by name until the parent closes the pipe."""
    # A terminal sends the signal to all processes; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _HAS_TIMER:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    requests, responses = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # runtimes print to stdout
    with suppress(EOFError, BrokenPipeError):
        while True:
            request, arrays = receive(requests)
            try:
                with time_limit(CALL_SECONDS):
                    response = handlers[request["name"]](request["path"], arrays)
            except VerificationError as error:
                response = {FAILED: str(error)}, ()
            except Exception as error:  # noqa: BLE001  # the process goes on
                response = {FAILED: f"the model does not run: {describe(error)}"}, ()
            send(responses, *response)
