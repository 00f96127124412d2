"""Progress of long work, reported by the library and shown by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
Bars = Callable[[str, int | None], Callable[[Iterable[Any]], Iterable[Any]]]

_BARS: ContextVar[Bars | None] = ContextVar("bars", default=None)


@contextmanager
def show_progress(bars: Bars) -> Iterator[None]:
    """Show the progress of work in this context; work may be nested.

    Args:
        bars: (title, number of items or None) -> function that wraps an iterable.
    """
    token = _BARS.set(bars)
    try:
        yield
    finally:
        _BARS.reset(token)


def track(title: str, items: Iterable[T], total: int | None = None) -> Iterable[T]:
    """Return the items, with progress shown as they are consumed."""
    bars = _BARS.get()
    return items if bars is None else bars(title, total)(items)


@contextmanager
def track_task(title: str) -> Iterator[None]:
    """Show work of unknown length in this context."""
    for _ in track(title, iter((None,))):
        yield
