"""Stretches in which a signal should not raise: while torch traces, its C++ calls Python, and ends
the whole process where that raises.

Whoever makes exceptions of signals (the command line does) asks, and raises at the end instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_depth = 0
_raise: list[Callable[[], None]] = []


@contextmanager
def defer_signals() -> Iterator[None]:
    """Signals wait until this is left; in the main thread, the only one that is given any."""
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
            waiting = tuple(_raise)
            _raise.clear()
            for then in waiting:
                then()


def defer(then: Callable[[], None]) -> bool:
    """Whether signals wait now; `then`, which raises, is called when they no longer do."""
    if _depth:
        _raise.append(then)
    return bool(_depth)
