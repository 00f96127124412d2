"""What a person sees: progress while it runs, then a result; or JSON alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

__all__ = ["progress", "say", "show_json", "status", "table"]

errors = Console(stderr=True)
screen = Console()


def progress(title: str, total: int | None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A progress bar with the time left around an iterable; silent when not on a terminal."""

    def around(items: Iterable[Any]) -> Iterator[Any]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(
            *columns, console=errors, transient=True, disable=not errors.is_terminal
        ) as bar:
            task = bar.add_task(title, total=total)
            for item in items:
                yield item
                bar.advance(task)

    return around


@contextmanager
def status(text: str) -> Iterator[None]:
    """A spinner while something without a countable length runs; silent when not on a terminal."""
    if not errors.is_terminal:
        yield
        return
    with errors.status(text):
        yield


def length_of(data: Any) -> int | None:
    """Number of batches, where that is known."""
    try:
        return len(data)
    except TypeError:
        return None


def say(text: str) -> None:
    click.echo(text)


def show_json(value: Any) -> None:
    """Strict JSON: numbers it cannot hold (an infinite SQNR) become null."""
    click.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(title: str | None, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """A table; numbers (any column but the first) stand right."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(columns):
        shown.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    screen.print(shown)
