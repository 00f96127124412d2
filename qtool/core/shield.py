"""Deferred signals: while torch traces, its C++ code calls Python and aborts the process if a
signal handler raises.

A handler that raises (the command line has one) calls `defer`, and raises at the end instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_depth = 0
_raise: list[Callable[[], None]] = []


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer signals until the context ends; without effect outside of the main thread."""
    global _depth  # noqa: PLW0603  # signals are of the whole process
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth:
            deferred = tuple(_raise)
            _raise.clear()
            for handler in deferred:
                handler()


def defer(handler: Callable[[], None]) -> bool:
    """Return whether signals are deferred; if so, `handler` is called at the end of the context."""
    if _depth:
        _raise.append(handler)
    return bool(_depth)
