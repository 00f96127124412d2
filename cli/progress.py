"""Progress on standard error: a bar on a terminal, elsewhere a line per stage, events with --json.

The lines are the log of the library, see `qtool.core.progress`.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TextIO

import click
from qtool.cli.command import JSON, LOGGED, QUIET, VERBOSE
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from qtool.core.progress import LOGGER

EVENT_SECONDS = 1.0
FIRST_LINE, NEXT_LINES = 10.0, 30.0  # seconds until a stage that has not ended says how far it is

errors = Console(stderr=True)
_bars = Progress(
    *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
    *(TimeElapsedColumn(), TimeRemainingColumn()),
    console=errors,
    transient=True,
)


def display(title: str, total: int | None) -> AbstractContextManager[Callable[[], None]]:
    """Show a stage as the options and the terminal ask for, see `qtool.core.progress.Display`."""
    if meta().get(JSON):
        return _events(title, total)
    if meta().get(QUIET):
        return nullcontext(lambda: None)
    return (_bar if errors.is_terminal else _lines)(title, total)


def meta() -> dict[str, Any]:
    """Return the settings of the command that runs; an empty dict if there is none."""
    context = click.get_current_context(silent=True)
    return {} if context is None else context.meta


@contextmanager
def _bar(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show a bar, below those of the stages around it."""
    if not _bars.tasks:
        errors.file = errors.file  # also while standard error is silenced for torch
        _bars.start()
    task = _bars.add_task(title, total=total)
    try:
        yield lambda: _bars.advance(task)
    finally:
        _bars.remove_task(task)
        if not _bars.tasks:
            _bars.stop()


@dataclass
class _Stage:
    """How far a stage is."""

    title: str
    total: int | None
    started: float = field(default_factory=time.monotonic)
    done: int = 0

    def numbers(self, now: float) -> tuple[int | None, float, float | None]:
        """Return the items in all, seconds so far and seconds left; None is not known.

        The total is not known once there are more items than were announced: batches of a model
        with a fixed number of samples are split.
        """
        spent = now - self.started
        total = None if self.total is None or self.done > self.total else self.total
        left = None if total is None or not self.done else spent / self.done * (total - self.done)
        return total, spent, left

    def __str__(self) -> str:
        total, spent, left = self.numbers(time.monotonic())
        if not self.done:
            return f"{self.title}: {spent:.0f} s so far"
        of = "" if total is None else f" of {total}"
        rest = "" if left is None else f", {left:.0f} s left"
        return f"{self.title}: {self.done}{of} after {spent:.0f} s{rest}"


_open: list[_Stage] = []  # outermost first


@contextmanager
def _lines(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Print how far a stage is, after ten seconds and then every half minute, with the stages
    inside; also while a single item takes that long."""
    stage, file = _Stage(title, total), sys.stderr  # silenced while torch captures
    beat = nullcontext() if _open else _beating(lambda: _print_stages(file))
    _open.append(stage)

    def advance() -> None:
        stage.done += 1

    try:
        with beat:
            yield advance
    finally:
        _open.remove(stage)


def _print_stages(file: TextIO) -> None:
    click.echo("; ".join(map(str, _open)), file)


@contextmanager
def _beating(write: Callable[[], None]) -> Iterator[None]:
    """Call a function from another thread, after ten seconds and then every half minute."""
    ended = threading.Event()

    def beat() -> None:
        due = FIRST_LINE
        while not ended.wait(due):
            write()
            due = NEXT_LINES

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _events(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Write an event at the start, at the end, and at most every second in between."""
    stage, file = _Stage(title, total), sys.stderr
    last = stage.started

    def write() -> None:
        nonlocal last
        last = time.monotonic()
        end, spent, left = stage.numbers(last)
        event = {"event": "progress", "step": title, "done": stage.done, "total": end}
        numbers = {"seconds": round(spent, 3), "left": None if left is None else round(left, 3)}
        click.echo(json.dumps(event | numbers), file)

    def advance() -> None:
        stage.done += 1
        if time.monotonic() - last >= EVENT_SECONDS and stage.done != total:
            write()

    write()
    with _beating(write):
        yield advance
    write()


def logged_texts() -> set[str]:
    """Return what the running command printed of the log so far."""
    return meta().setdefault(LOGGED, set())


class _Handler(logging.Handler):
    """Prints the log of qtool to standard error, above a bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        logged_texts().add(text)
        if _bars.tasks:
            errors.print(f"[dim]{escape(text)}[/dim]", highlight=False)
        else:
            click.echo(text, err=True)


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Print the log of qtool, from the level that the options and the terminal select."""
    handler, before = _Handler(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(_log_level())
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(before)


def _log_level() -> int:
    settings = meta()
    if settings.get(QUIET):
        return logging.WARNING
    if settings.get(VERBOSE):
        return logging.DEBUG if settings[VERBOSE] > 1 else logging.INFO
    return logging.WARNING if errors.is_terminal or settings.get(JSON) else logging.INFO
