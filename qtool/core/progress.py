"""Progress of long work: logged by the library, shown by the caller.

Every stage is logged to the logger "qtool" when it ends, at INFO; stages inside others at DEBUG.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

LOGGER = logging.getLogger("qtool")

T = TypeVar("T")
Bars = Callable[[str, int | None], Callable[[Iterable[Any]], Iterable[Any]]]
"""(title, number of items or None) -> function that wraps an iterable."""

_BARS: ContextVar[Bars | None] = ContextVar("bars", default=None)


class _Stages(threading.local):
    """The stages of this thread that have begun and not ended, outermost first."""

    def __init__(self) -> None:
        self.open: list[object] = []


_stages = _Stages()


@contextmanager
def show_progress(bars: Bars) -> Iterator[None]:
    """Show the progress of work in this context; work may be nested.

    Args:
        bars: makes the bar of a stage.
    """
    token = _BARS.set(bars)
    try:
        yield
    finally:
        _BARS.reset(token)


def no_bars(title: str, total: int | None) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a function that shows no progress."""
    return lambda items: items


def track(title: str, items: Iterable[T], total: int | None = None) -> Iterable[T]:
    """Return the items, with progress shown as they are consumed, and logged at the end."""
    bars = _BARS.get()
    return _log_stage(title, items if bars is None else bars(title, total)(items))


@contextmanager
def track_task(title: str) -> Iterator[None]:
    """Show and log work of unknown length in this context."""
    for _ in track(title, iter((None,))):
        yield


def _log_stage(title: str, items: Iterable[T]) -> Iterator[T]:
    stage, count, start = object(), 0, time.monotonic()
    level = logging.DEBUG if _stages.open else logging.INFO
    _stages.open.append(stage)
    try:
        for item in items:
            yield item
            count += 1
    finally:
        _stages.open.remove(stage)
    steps = f" ({count} steps)" if count > 1 else ""
    LOGGER.log(level, "%s: %.1f s%s", title, time.monotonic() - start, steps)
