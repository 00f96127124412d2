"""Output of a command: progress while it runs, then its result as text or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from qtool.cli import JSON, envelope
from rich.console import Console
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

from qtool.core.records import to_json

EVENT_SECONDS = 1.0

errors = Console(stderr=True)


def progress(title: str, total: int | None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function that iterates and shows a progress bar with the time left.

    Nothing is shown if standard error is not a terminal. With --json, progress is written to
    standard error as events, one line of JSON each.

    Args:
        title: name of the step.
        total: number of items; None: the length of the iterable, if it has one.
    """

    def iterate(items: Iterable[Any]) -> Iterator[Any]:
        length = length_of(items) if total is None else total
        show_progress = _events if _is_json() else _bar
        with show_progress(title, length) as advance:
            for item in items:
                yield item
                advance()

    return iterate


_tasks: list[tuple[Progress, TaskID]] = []  # outermost first


@contextmanager
def _bar(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show one bar at a time: of nested steps, that of the innermost."""
    if not errors.is_terminal:
        yield lambda: None
        return
    bar = _tasks[-1][0] if _tasks else Progress(*_columns(), console=errors, transient=True)
    if _tasks:
        bar.update(_tasks[-1][1], visible=False)
    else:
        bar.start()
    task = bar.add_task(title, total=total)
    _tasks.append((bar, task))
    try:
        yield lambda: bar.advance(task)
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
def _events(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Write an event at the start, at the end, and at most every second in between."""
    started = last = time.monotonic()
    done = 0

    def write() -> None:
        nonlocal last
        last = time.monotonic()
        spent = last - started
        left = spent / done * (total - done) if done and total is not None else None
        event = {"event": "progress", "step": title, "done": done, "total": total}
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


def _is_json() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON))


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show progress of unknown length."""
    for _ in progress(text, None)(iter((None,))):
        yield


def length_of(data: Any) -> int | None:
    """Return the number of batches, or None if the data has no length."""
    try:
        return len(data)
    except Exception:  # noqa: BLE001  # the user's code may raise anything
        return None


def say(text: str) -> None:
    click.echo(text)


def show(result: Any, as_json: bool) -> None:
    """Print a result of the library as text or as JSON."""
    if as_json:
        show_json(result)
    else:
        say(str(result))


def exit_if_missed(report: Any, fail_on: str | None = None) -> None:
    """Exit with 1 and the reason if a goal is missed, or a verdict is one of --fail-on.

    Args:
        report: a `Report`.
        fail_on: "bad" for "Do not ship", "review" for that and "Needs review".
    """
    refused = {None: (), "bad": ("bad",), "review": ("look", "bad")}[fail_on]
    failed = False
    for model in report.models:
        for check in () if model.verdict is None else model.verdict.checks:
            if check.missed:
                click.echo(f"goal missed by {model.name}: {check.text}", err=True)
                failed = True
        if model.verdict is not None and str(model.verdict.level) in refused:
            click.echo(f"--fail-on {fail_on}: {model.name}: {model.verdict.headline}", err=True)
            failed = True
    if failed:
        raise SystemExit(1)


def show_json(*parts: Any) -> None:
    """Print one JSON document: the fields of `Envelope`, then those of each part.

    Args:
        parts: dataclasses of `qtool.cli.documents.DOCUMENTS`.
    """
    context = click.get_current_context()
    fields = envelope(context.command.name or "")
    for part in parts:
        fields |= to_json(part)
    click.echo(json.dumps(fields, indent=2, allow_nan=False))
