"""Progress on standard error: a bar on a terminal, elsewhere a line per stage, events with --json.

The lines are the log of the library, see `qtool.core.progress`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import click
from qtool.cli.command import JSON, LOG_LEVEL, LOGGED, QUIET, VERBOSE
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from qtool.core import formats
from qtool.core.progress import LOGGER

EVENT_SECONDS = 1.0
FIRST_LINE, NEXT_LINES = 10.0, 30.0  # seconds until a stage without end tells how far it is

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
    bar = _tasks[-1][0] if _tasks else Progress(*_columns(), console=errors, transient=True)
    if _tasks:
        bar.update(_tasks[-1][1], visible=False)
    else:
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


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )


@contextmanager
def _lines(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Print how far a stage is, after ten seconds and then every half minute."""
    started, done = time.monotonic(), 0
    due = started + FIRST_LINE

    def advance() -> None:
        nonlocal done, due
        done += 1
        now = time.monotonic()
        if now < due or done == (total or 1):
            return
        due = now + NEXT_LINES
        end = _total(total, done)
        of = "" if end is None else f" of {end}"
        spent = now - started
        left = "" if end is None else f", {_seconds(spent / done * (end - done))} left"
        click.echo(f"{title}: {done}{of} after {_seconds(spent)}{left}", err=True)

    yield advance


def _seconds(value: float) -> str:
    return formats.milliseconds(1000 * value)


@contextmanager
def _events(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Write an event at the start, at the end, and at most every second in between."""
    started = last = time.monotonic()
    done = 0

    def write() -> None:
        nonlocal last
        last = time.monotonic()
        spent, end = last - started, _total(total, done)
        left = spent / done * (end - done) if done and end is not None else None
        event = {"event": "progress", "step": title, "done": done, "total": end}
        numbers = {"seconds": round(spent, 3), "left": None if left is None else round(left, 3)}
        click.echo(json.dumps(event | numbers), err=True)

    def advance() -> None:
        nonlocal done
        done += 1
        if time.monotonic() - last >= EVENT_SECONDS and done != total:
            write()

    write()
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
