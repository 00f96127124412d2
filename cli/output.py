"""What a person sees: progress while it runs, then a result; or JSON alone."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from qtool.cli import JSON
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

EVENT_SECONDS = 1.0

errors = Console(stderr=True)


def progress(title: str, total: int | None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A progress bar with the time left around an iterable; silent when not on a terminal. With
    --json events for machines instead, a line of JSON each on standard error.

    Args:
        total: how many items there are; None: found out where the iterable has a length.
    """

    def around(items: Iterable[Any]) -> Iterator[Any]:
        known = length_of(items) if total is None else total
        shown = _events if _is_json() else _line
        with shown(title, known) as advance:
            for item in items:
                yield item
                advance()

    return around


_tasks: list[tuple[Progress, TaskID]] = []  # outermost first


@contextmanager
def _line(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """One line for all work at once: that of the innermost."""
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
    """At the beginning, at the end, and at most every second in between."""
    started = told = time.monotonic()
    done = 0

    def tell() -> None:
        nonlocal told
        told = time.monotonic()
        spent = told - started
        left = spent / done * (total - done) if done and total is not None else None
        event = {"event": "progress", "step": title, "done": done, "total": total}
        numbers = {"seconds": round(spent, 3), "left": None if left is None else round(left, 3)}
        click.echo(json.dumps(event | numbers), err=True)

    def advance() -> None:
        nonlocal done
        done += 1
        if time.monotonic() - told >= EVENT_SECONDS and done != total:
            tell()

    tell()
    yield advance
    tell()


def _is_json() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON))


@contextmanager
def status(text: str) -> Iterator[None]:
    """While something without a countable length runs."""
    for _ in progress(text, None)(iter((None,))):
        yield


def length_of(data: Any) -> int | None:
    """Number of batches, where that is known."""
    try:
        return len(data)
    except Exception:  # noqa: BLE001  # the user's code; a bar without an end does as well
        return None


def say(text: str) -> None:
    click.echo(text)


def show(found: Any, as_json: bool) -> None:
    """A result of the library: as its text, or as JSON."""
    if as_json:
        show_json(found.to_json())
    else:
        say(str(found))


def exit_if_missed(report: Any) -> None:
    """Exit code 1 where a goal that the user set was missed."""
    if report.missed:
        click.echo("a goal that was asked for is missed", err=True)
        raise SystemExit(1)


def show_json(value: Any) -> None:
    """Strict JSON: numbers it cannot hold (an infinite SQNR) become null."""
    click.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
