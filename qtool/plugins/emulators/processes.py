"""Other programs: each runs in its own process group, with a time limit, and ends with qtool."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from qtool.core.errors import EmulationError

_LONGEST = 400  # characters of a program's output in a message
_NOISE = ("warning: TCG doesn't support", "core dumped")
_FOREVER = 1e9  # seconds
_TAIL = 64 * 1024  # bytes read from the end of a program's output


class TimeLimitError(EmulationError):
    """A program exceeded its time limit."""


def run_command(
    command: Sequence[str | Path],
    title: str,
    timeout: float | None,
    *,
    environment: Mapping[str, str] | None = None,
    grace: float = 2.0,
) -> str:
    """Run a program to its end, and return its standard output.

    Standard input is a pipe that stays open as long as this process lives, so that the program can
    end when this process is killed.

    Args:
        command: the program and its arguments.
        title: the program's name in messages.
        timeout: seconds; None for no limit.
        environment: environment variables; None for those of this process.
        grace: seconds between SIGTERM and SIGKILL when the program is stopped.

    Raises:
        EmulationError: the program cannot be started, or fails.
        TimeLimitError: it takes longer than `timeout`.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        started = time.monotonic()
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
        with _ended(process, grace):
            try:
                # With a timeout it polls; without one it would miss a Ctrl-C that comes just before
                # the wait begins.
                code = process.wait(_FOREVER if timeout is None else timeout)
            except subprocess.TimeoutExpired as error:
                spent = time.monotonic() - started
                raise TimeLimitError(f"{title} was stopped after {spent:.0f} s") from error
        if code:
            raise EmulationError(f"{title} fails: {_summary(code, _tail(errors), _tail(out))}")
        return _tail(out)


@contextmanager
def _ended(process: subprocess.Popen[bytes], grace: float) -> Iterator[None]:
    """End the whole process group on exit, whatever the reason is."""
    try:
        yield
    finally:
        if process.poll() is None:
            _signal_group(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace)
        _signal_group(process, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the process group, which exists as long as one of its processes does."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _tail(file: IO[Any]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    text: str = file.read().decode("utf-8", "replace")
    return text


def _summary(code: int, errors: str, printed: str) -> str:
    """Return the last line of the output with the signal or the exit code."""
    why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    lines = [line.strip() for line in (errors.strip() or printed.strip()).splitlines()]
    words = [line for line in lines if line and not any(n in line for n in _NOISE)]
    last = words[-1] if words else ""
    last = f"{last[:_LONGEST]} ..." if len(last) > _LONGEST else last
    return f"{last} ({why})" if last else why
