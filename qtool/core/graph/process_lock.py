"""One thread at a time, and quietly: torch.export and torch.onnx change what the whole process has.

While they trace, torch's modules, its warnings, its loggers and standard error are theirs; of two
threads that trace, both fail, and neither puts back what it found.
"""

from __future__ import annotations

import ctypes
import gc
import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_GC_THRESHOLD = 100_000
"""New objects after which garbage is looked for while torch traces, or a conversion runs: both make
so many that Python, at its own 700, walks all of them and all of torch several times, for a tenth
of the time."""

PROCESS_LOCK = threading.RLock()
"""Held by whoever traces a model, or runs one while another thread might trace."""


def exclusive(function: Callable[P, R]) -> Callable[P, R]:
    """The function, in one thread at a time with all others of this kind."""

    @wraps(function)
    def held(*args: P.args, **kwargs: P.kwargs) -> R:
        with PROCESS_LOCK:
            return function(*args, **kwargs)

    return held


@contextmanager
def silence_logging(
    level: int = logging.CRITICAL, *loggers: str, keep_stderr: bool = False
) -> Iterator[None]:
    """Keeps torch's warnings, logs and graph dumps from the user: what matters is raised.

    Args:
        level: from which on loggers speak. loggers: by default that of torch.
        errors: standard error is left as it is.
    """
    with PROCESS_LOCK, ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in loggers or ("torch",):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(level)
        if not keep_stderr:
            stack.enter_context(redirect_stderr(io.StringIO()))
        yield


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Inside, garbage is looked for rarely; never, where a person wants none."""
    young, *older = gc.get_threshold()
    if young:
        gc.set_threshold(max(young, _GC_THRESHOLD), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        if 0 < young < _GC_THRESHOLD and gc.isenabled():
            _promote_survivors()


def _promote_survivors() -> None:
    """Collects what is new, and calls old what is left of it, without a walk through all that is:
    Python would take one as soon as it may, since so much is new."""
    gc.collect(1)
    if not gc.get_freeze_count():  # what a person froze stays so
        gc.freeze()
        gc.unfreeze()


def trim_memory() -> None:
    """Collects what goes in circles (graphs do, with all of their weights), and gives free memory
    back to the system; glibc keeps it otherwise, and what comes next is on top."""
    gc.collect(1)
    if _TRIM is not None:
        _TRIM(0)


def _trim() -> Callable[[int], object] | None:
    try:
        found: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return None
    return found


_TRIM = _trim()
