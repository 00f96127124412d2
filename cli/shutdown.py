"""How a command ends that does not end well: one sentence, the right exit code, nothing left."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")

PATIENCE = 5.0  # seconds that a signal waits for what may not be interrupted; a second one does not

_NO_MEMORY = (
    "there is not enough memory for this; give less at a time (smaller sizes, fewer samples)"
)

_STDERR = 2


class Refusal(click.ClickException):
    """A user error: exit code 2, as for wrong options."""

    exit_code = 2


class _Ended(KeyboardInterrupt):
    """A signal, as an exception: what is open is closed on its way out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Errors of the library as refusals, signals as 128 and their number, a closed pipe as that of
    SIGPIPE (141)."""
    _hold_closed()
    try:
        with _signals_raised(), _said():
            yield
            sys.stdout.flush()  # here it can still be said that nobody takes it
    except BaseException as error:
        if (ended := _behind(error)) is None:
            raise
        number = ended.number if isinstance(ended, _Ended) else signal.SIGINT
        click.echo(f"ended by {signal.Signals(number).name}", err=True)
        raise SystemExit(128 + number) from error


def _behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """The signal that an error comes of: on its way out, others may make something else of it."""
    seen: set[int] = set()
    while error is not None and not isinstance(error, KeyboardInterrupt | SystemExit):
        if id(error) in seen:
            return None
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return error if isinstance(error, KeyboardInterrupt) else None


@contextmanager
def _said() -> Iterator[None]:
    """Errors that are the user's to see, in a sentence."""
    from qtool.core.errors import QtoolError, describe

    try:
        yield
    except (KeyboardInterrupt, click.ClickException):
        raise
    except QtoolError as error:
        raise Refusal(str(error)) from error
    except MemoryError as error:
        raise Refusal(_NO_MEMORY) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # torch's own words
            raise
        raise Refusal(_NO_MEMORY) from error
    except OSError as error:
        _give_up_output()
        if error.errno == errno.EPIPE:
            raise SystemExit(141) from error
        where = f" ({error.filename})" if error.filename else ""
        raise Refusal(f"the system refuses: {error.strerror or error}{where}") from error
    except BaseException as error:
        if isinstance(error, Exception | SystemExit):
            raise
        raise Refusal(f"code that is not qtool's ended the command: {describe(error)}") from error


def _hold_closed() -> None:
    """Standard streams that were closed (`>&-`, a daemon) lead nowhere: the next file to be opened
    would be in their place, and get what libraries print."""
    while (held := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(held)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open(mode)  # noqa: SIM115  # for as long as the process
            setattr(sys, name, nowhere)


@contextmanager
def _signals_raised() -> Iterator[None]:
    from qtool.core.shield import defer

    old: dict[int, Any] = {}
    waiting: list[threading.Timer] = []

    def end(number: int, frame: FrameType | None) -> None:
        if waiting or not defer(lambda: fail(number)):
            fail(number)
        again = threading.Timer(PATIENCE, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        waiting.append(again)

    def fail(number: int) -> None:
        while waiting:
            waiting.pop().cancel()
        if number == signal.SIGINT:  # which ends a search, and the command at the second
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_IGN)  # what is cleaned up is cleaned up once
        raise _Ended(number)

    for name in SIGNALS:
        number = getattr(signal, name, None)
        usual = (signal.SIG_DFL, signal.default_int_handler)
        if number is None or signal.getsignal(number) not in usual:
            continue  # ignored, as under nohup, or somebody else's
        with suppress(ValueError):  # not in the main thread
            old[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _give_up_output() -> None:
    """What is left unwritten goes nowhere: Python would fail on it once more at its end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
