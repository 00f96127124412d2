"""A program in a process group of its own, with a time limit, that ends with qtool."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from qtool.core.errors import EmulationError

_LONGEST = 400  # characters of a program's output in a message
_NOISE = ("warning: TCG doesn't support", "core dumped")
_TAIL = 64 * 1024  # bytes read from the end of a program's output


class TimeLimitError(EmulationError):
    """A program exceeded its time limit."""


def run_command(
    command: Sequence[str | Path],
    title: str,
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end, and return what it prints.

    Standard input is a pipe that stays open as long as this process lives, so that the program can
    end when this process is killed.

    Args:
        command: the program and its arguments.
        title: the program's name in messages.
        timeout: seconds.
        environment: environment variables; None for those of this process.

    Raises:
        EmulationError: the program cannot be started, or fails.
        TimeLimitError: it takes longer than `timeout`.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(  # noqa: S603  # the caller's list of arguments
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            raise EmulationError(f"{title} does not start: {error}") from error
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeLimitError(f"{title} was stopped after {timeout:.0f} s") from error
        finally:  # the group exists as long as one of its processes does
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        if code:
            raise EmulationError(f"{title} fails: {_summary(code, _tail(errors) or _tail(out))}")
        return _tail(out)


def _tail(file: IO[Any]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    text: str = file.read().decode("utf-8", "replace")
    return text.strip()


def _summary(code: int, printed: str) -> str:
    """Return the last line of the output with the signal or the exit code."""
    why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    lines = [line.strip() for line in printed.splitlines()]
    words = [line for line in lines if line and not any(n in line for n in _NOISE)]
    last = words[-1] if words else ""
    last = f"{last[:_LONGEST]} ..." if len(last) > _LONGEST else last
    return f"{last} ({why})" if last else why
