"""How far long work is: said where it is done, shown by whoever asks for it."""

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
    """Work in this context is shown by `bars`: a title and a number of items (None: unknown) to
    what wraps an iterable. Work may contain other work."""
    token = _BARS.set(bars)
    try:
        yield
    finally:
        _BARS.reset(token)


def track(title: str, items: Iterable[T], total: int | None = None) -> Iterable[T]:
    """The items, shown as they are done."""
    bars = _BARS.get()
    return items if bars is None else bars(title, total)(items)


@contextmanager
def track_task(title: str) -> Iterator[None]:
    """Work of which nobody knows how far it is."""
    for _ in track(title, iter((None,))):
        yield
