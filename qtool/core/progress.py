"""Progress of long work: logged by the library, shown by the caller.

Every stage is logged to the logger "qtool" when it ends, at INFO; stages inside others at DEBUG.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

LOGGER = logging.getLogger("qtool")

T = TypeVar("T")
Bars = Callable[[str, int | None], Callable[[Iterable[Any]], Iterable[Any]]]
"""(title, number of items or None) -> function that wraps an iterable."""

Display = Callable[[str, int | None], AbstractContextManager[Callable[[], None]]]
"""(title, number of items or None) -> shows a stage; its value is called after each item."""


_DISPLAY: ContextVar[Display | None] = ContextVar("display", default=None)


class _Stages(threading.local):
    """The stages of this thread that have begun and not ended, outermost first."""

    def __init__(self) -> None:
        self.open: list[object] = []


_stages = _Stages()


@contextmanager
def show_progress(display: Display) -> Iterator[None]:
    """Show the progress of work in this context; work may be nested."""
    token = _DISPLAY.set(display)
    try:
        yield
    finally:
        _DISPLAY.reset(token)


def no_progress(items: Iterable[Any]) -> Iterable[Any]:
    """Return the items, and show no progress."""
    return items


def no_bars(title: str, total: int | None) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a function that shows no progress."""
    return no_progress


def track(
    title: str, items: Iterable[T], total: int | None = None, detail: bool = False
) -> Iterator[T]:
    """Yield the items, with progress shown as they are consumed, and logged at the end.

    Args:
        title: name of the stage.
        items: values of any kind.
        total: number of items; None: the length of the iterable, if it has one.
        detail: log it as a stage inside another, also where none is open.
    """
    display = _DISPLAY.get()
    shown: AbstractContextManager[Callable[[], None]] = nullcontext(lambda: None)
    if display is not None:
        shown = display(title, length_of(items) if total is None else total)
    stage, count, start = object(), 0, time.monotonic()
    level = logging.DEBUG if detail or _stages.open else logging.INFO
    _stages.open.append(stage)
    try:
        with shown as advance:
            for item in items:
                yield item
                count += 1
                advance()
    finally:
        _stages.open.remove(stage)
    steps = f" ({count} steps)" if count > 1 else ""
    LOGGER.log(level, "%s: %.1f s%s", title, time.monotonic() - start, steps)


def stage(title: str, total: int | None) -> Callable[[Iterable[T]], Iterator[T]]:
    """Return `track` as a function of the items alone."""
    return lambda items: track(title, items, total)


@contextmanager
def track_task(title: str, detail: bool = False) -> Iterator[None]:
    """Show and log work of unknown length in this context; detail: see `track`."""
    for _ in track(title, iter((None,)), detail=detail):
        yield


def length_of(data: Any) -> int | None:
    """Return the number of batches, or None if the data has no length."""
    try:
        return len(data)
    except Exception:  # noqa: BLE001  # the user's code may raise anything
        return None
