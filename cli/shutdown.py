"""Errors and signals of a command: one sentence and the right exit code.

Partial files are removed by `qtool.core.atomic`.
"""

from __future__ import annotations

import errno
import os
import platform
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")

PATIENCE = 5.0  # seconds that a signal waits for a section that must not be interrupted

_NO_MEMORY = "there is not enough memory for this; use smaller sizes or fewer samples"

_CLICK = (click.ClickException, click.exceptions.Exit, click.Abort)
_TORCH_NO_MEMORY = "can't allocate memory"  # of a RuntimeError

_STDERR = 2

_PACKAGES = ("qtool", "torch", "onnx", "onnxruntime", "onnxscript", "onnx-ir", "numpy")


class Refusal(click.ClickException):
    """A user error: exit code 2, as for wrong options."""

    exit_code = 2


class _SignalReceived(KeyboardInterrupt):
    """A signal as an exception, so that context managers clean up."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def clean_shutdown() -> Iterator[None]:
    """Map errors of the library to `Refusal`, bugs to `InternalError`, signals to exit codes.

    Raises:
        Refusal: the user can correct the error.
        InternalError: any other error, a bug in qtool.
        SystemExit: with 128 + the number of the signal; a closed output pipe gives 141.
    """
    _open_closed_streams()
    try:
        with _signals_as_exceptions(), _errors_as_refusals():
            yield
            sys.stdout.flush()  # a closed pipe can still be reported here
    except BaseException as error:
        if (received := _cause_signal(error)) is None:
            raise
        number = received.number if isinstance(received, _SignalReceived) else signal.SIGINT
        click.echo(f"ended by {signal.Signals(number).name}", err=True)
        raise SystemExit(128 + number) from error


def _cause_signal(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the signal that caused an error, which libraries may wrap in another exception."""
    seen: set[int] = set()
    while error is not None and not isinstance(error, KeyboardInterrupt | SystemExit):
        if id(error) in seen:
            return None
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return error if isinstance(error, KeyboardInterrupt) else None


@contextmanager
def _errors_as_refusals() -> Iterator[None]:
    """Map errors that the user can correct to `Refusal`, others to `InternalError`."""

    from qtool.core.errors import PassError, QtoolError, describe
    from qtool.core.torch_package import TORCH, has_torch, torch_error

    try:
        yield
    except (KeyboardInterrupt, SystemExit, *_CLICK):
        raise
    except QtoolError as error:
        if isinstance(error, PassError):  # always a bug
            raise _internal_error(error) from error
        raise Refusal(str(error)) from error
    except ModuleNotFoundError as error:
        if has_torch() or (error.name or "").partition(".")[0] != TORCH:
            raise _internal_error(error) from error
        command = click.get_current_context().invoked_subcommand
        raise Refusal(str(torch_error(f"qtool {command}"))) from error
    except OSError as error:
        _discard_output()
        if error.errno == errno.EPIPE:
            raise SystemExit(141) from error
        where = f" ({error.filename})" if error.filename else ""
        raise Refusal(f"operating system error: {error.strerror or error}{where}") from error
    except Exception as error:
        if _cause_signal(error) is not None:
            raise
        if isinstance(error, MemoryError) or _TORCH_NO_MEMORY in str(error):
            raise Refusal(_NO_MEMORY) from error
        raise _internal_error(error) from error
    except BaseException as error:
        raise Refusal(f"code outside qtool ended the command: {describe(error)}") from error


def _open_closed_streams() -> None:
    """Open standard streams that were closed (`>&-`, a daemon) on the null device.

    Otherwise the next file that is opened gets their number, and what libraries print.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = Path(os.devnull).open(mode)  # noqa: SIM115  # stays open with the process
            setattr(sys, name, null)


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Raise signals as exceptions; a second signal does not wait for a shielded section."""
    from qtool.core.shield import defer

    old: dict[int, Any] = {}
    waiting: list[threading.Timer] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if waiting or not defer(lambda: raise_signal(number)):
            raise_signal(number)
        again = threading.Timer(PATIENCE, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        waiting.append(again)

    def raise_signal(number: int) -> None:
        while waiting:
            waiting.pop().cancel()
        if (
            number == signal.SIGINT
        ):  # a search ends with its best result so far; a second one ends the command
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_IGN)  # clean up only once
        raise _SignalReceived(number)

    for name in SIGNALS:
        number = getattr(signal, name, None)
        default = (signal.SIG_DFL, signal.default_int_handler)
        if number is None or signal.getsignal(number) not in default:
            continue  # ignored, as under nohup, or handled by the caller
        with suppress(ValueError):  # not in the main thread
            old[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _discard_output() -> None:
    """Send unwritten output to the null device: Python would fail on it again when it exits."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


class InternalError(click.ClickException):
    """An error that no user can correct: exit code 70 (EX_SOFTWARE of sysexits.h)."""

    exit_code = 70


def _internal_error(error: BaseException) -> InternalError:
    """Return the error to show for an unexpected exception, whose traceback is printed first."""
    from qtool.core.errors import QtoolError, describe
    from qtool.core.versions import version_of

    click.echo("".join(traceback.format_exception(error)), err=True)
    versions = ", ".join(f"{name} {version_of(name) or '-'}" for name in _PACKAGES)
    system = f"Python {platform.python_version()}, {platform.platform()}"
    click.echo(f"command: {shlex.join(sys.argv)}\nversions: {versions}; {system}\n", err=True)
    one_line = QtoolError(
        f"internal error, a bug in qtool: {describe(error)}; please report it with the lines above"
    )
    return InternalError(str(one_line))
