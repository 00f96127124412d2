"""Calls of a runtime in a subprocess: a crash of the runtime becomes an error message."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from qtool.backends.pipe_process import FAILED, Message, PipeProcess, receive, send
from qtool.backends.runtime import Arrays
from qtool.core.errors import VerificationError, describe

Handler = Callable[[str, Arrays], tuple[Message, Arrays]]
"""Takes a file and arrays, returns a message and arrays."""

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from importlib import import_module
import_module(sys.argv[2]).serve()
"""


class SubprocessRunner(PipeProcess):
    """A subprocess that runs calls on files.

    Args:
        module: its `serve` handles the calls in the subprocess.
        title: of the runtime.
    """

    def __init__(self, module: str, title: str) -> None:
        super().__init__()
        self.module, self.title = module, title

    def call(self, name: str, path: str, arrays: Arrays = ()) -> tuple[Message, Arrays]:
        """Run one handler of the subprocess on a file and return its response.

        Args:
            name: of the handler, a key of `serve`'s table.
            path: the file.
            arrays: its inputs, or what else the handler takes.

        Raises:
            VerificationError: the runtime failed, with its message, or crashed.
        """
        message, results = self._request({"name": name, "path": path}, arrays)
        if FAILED in message:
            raise VerificationError(message[FAILED])
        return message, results

    def _command(self) -> Sequence[str]:
        return sys.executable, "-c", _START, json.dumps(sys.path), self.module

    def _crash(self, why: str) -> str:
        return (
            f"{self.title} crashes on the model ({why}), which is a bug in {self.title}; "
            f"choose another target, or another version of {self.title}"
        )


def serve(handlers: Mapping[str, Handler]) -> None:
    """Handle calls by name until the parent closes the pipe."""
    # A terminal sends the signal to all processes; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, responses = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # runtimes print to stdout
    with suppress(EOFError, BrokenPipeError):
        while True:
            request, arrays = receive(requests)
            try:
                response = handlers[request["name"]](request["path"], arrays)
            except VerificationError as error:
                response = {FAILED: str(error)}, ()
            except Exception as error:  # noqa: BLE001  # the process goes on
                response = {FAILED: f"the model does not run: {describe(error)}"}, ()
            send(responses, *response)
