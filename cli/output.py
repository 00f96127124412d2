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

__all__ = ["exit_if_missed", "length_of", "progress", "say", "show", "show_json", "status"]

errors = Console(stderr=True)


def progress(title: str, total: int | None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A progress bar with the time left around an iterable; silent when not on a terminal.

    Args:
        title: of what is iterated, where it has none of its own (`qtool.conversion.Rounds`).
        total: how many items there are, of an iterable that does not know it.
    """

    def around(items: Iterable[Any]) -> Iterator[Any]:
        known = length_of(items)
        if known is None:
            known = total
        shown = getattr(items, "title", title)
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
            task = bar.add_task(shown, total=known)
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
