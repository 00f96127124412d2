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
from functools import partial
from typing import Any, TextIO

import click
from qtool.cli.command import JSON, LOG_LEVEL, LOGGED, QUIET, VERBOSE
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.text import Text

from qtool.core.progress import LOGGER

EVENT_SECONDS = 1.0
FIRST_LINE, NEXT_LINES = 10.0, 30.0  # seconds until a stage that has not ended says how far it is

errors = Console(stderr=True)


def _total(total: int | None, done: int) -> int | None:
    """Return None once there are more items than were announced: batches of a model with a fixed
    number of samples are split."""
    return None if total is None or done > total else total


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


_tasks: list[tuple[Progress, TaskID]] = []  # outermost first


@contextmanager
def _bar(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show one bar at a time: of nested steps, that of the innermost."""
    columns = TextColumn("{task.description}"), BarColumn(), _HowFar()
    bar = _tasks[-1][0] if _tasks else Progress(*columns, console=errors, transient=True)
    if _tasks:
        bar.update(_tasks[-1][1], visible=False)
    else:
        errors.file = errors.file  # also while standard error is silenced for torch
        bar.start()
    task = bar.add_task(title, total=total)
    _tasks.append((bar, task))
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        bar.update(task, completed=done, total=None if total is None else max(total, done))

    try:
        yield advance
    finally:
        _tasks.remove((bar, task))
        if _tasks:
            bar.remove_task(task)
            bar.update(_tasks[-1][1], visible=True)
        else:
            bar.stop()


class _HowFar(ProgressColumn):
    """Items, time so far and time left of a stage."""

    def render(self, task: Task) -> Text:
        total = None if task.total is None else int(task.total)
        return Text(_how_far(int(task.completed), total, task.elapsed or 0.0))


def _how_far(done: int, total: int | None, spent: float) -> str:
    """Return what is known of a stage: "3 of 10 after 6 s, 14 s left" or "6 s so far".

    Args:
        done: items so far.
        total: items in all; None if unknown.
        spent: seconds so far.
    """
    end = _total(total, done)
    if not done:
        return f"{_seconds(spent)} so far"
    of = "" if end is None else f" of {end}"
    left = "" if end is None else f", {_seconds(spent / done * (end - done))} left"
    return f"{done}{of} after {_seconds(spent)}{left}"


@dataclass
class _Stage:
    """A stage whose progress is printed as lines."""

    title: str
    total: int | None
    started: float = field(default_factory=time.monotonic)
    done: int = 0

    def advance(self) -> None:
        self.done += 1

    def __str__(self) -> str:
        return f"{self.title}: {_how_far(self.done, self.total, time.monotonic() - self.started)}"


_open: list[_Stage] = []  # outermost first


@contextmanager
def _lines(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Print how far a stage is, after ten seconds and then every half minute, with the stages
    inside; also while a single item takes that long."""
    stage = _Stage(title, total)
    # standard error is silenced while torch captures
    beat = nullcontext() if _open else _beating(partial(_print_stages, sys.stderr))
    _open.append(stage)
    try:
        with beat:
            yield stage.advance
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


def _seconds(value: float) -> str:
    return f"{value:.0f} s"


@contextmanager
def _events(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Write an event at the start, at the end, and at most every second in between."""
    started = last = time.monotonic()
    done, file = 0, sys.stderr

    def write() -> None:
        nonlocal last
        last = time.monotonic()
        spent, end = last - started, _total(total, done)
        left = spent / done * (end - done) if done and end is not None else None
        event = {"event": "progress", "step": title, "done": done, "total": end}
        numbers = {"seconds": round(spent, 3), "left": None if left is None else round(left, 3)}
        click.echo(json.dumps(event | numbers), file)

    def advance() -> None:
        nonlocal done
        done += 1
        if time.monotonic() - last >= EVENT_SECONDS and done != total:
            write()

    write()
    with _beating(write):
        yield advance
    write()


def logged_texts() -> set[str]:
    """Return what the running command printed of the log so far."""
    texts: set[str] = meta().setdefault(LOGGED, set())
    return texts


class _Handler(logging.Handler):
    """Prints the log of qtool to standard error, above a bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        logged_texts().add(text)
        if _tasks:
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
    if settings.get(LOG_LEVEL):
        return int(logging.getLevelName(settings[LOG_LEVEL].upper()))
    if settings.get(QUIET):
        return logging.WARNING
    if settings.get(VERBOSE):
        return logging.DEBUG if settings[VERBOSE] > 1 else logging.INFO
    return logging.WARNING if errors.is_terminal or settings.get(JSON) else logging.INFO
