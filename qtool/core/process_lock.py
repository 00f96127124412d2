"""A lock for torch.export and torch.onnx, which change global state of the process.

While they trace they patch torch's modules, warnings, loggers and standard error: two threads that
trace at once both fail, and neither restores the state.
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

_GC_THRESHOLD = 100_000
"""New objects that start a garbage collection while torch traces or a conversion runs. At Python's
default of 700 collections walk through all objects of torch several times, a tenth of the time."""

PROCESS_LOCK = threading.RLock()
"""Held while a model is traced, or run while another thread might trace."""


@contextmanager
def silence_logging(
    level: int = logging.CRITICAL, *loggers: str, keep_stderr: bool = False
) -> Iterator[None]:
    """Silence warnings, loggers and standard error of torch; errors are raised all the same.

    Args:
        level: lowest level that loggers print.
        loggers: their names; by default "torch".
        keep_stderr: leaves standard error as it is.
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
    """Collect garbage rarely in this context; never if collection is turned off."""
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
    """Collect the young generations and move the survivors to the oldest one, so that Python starts
    no full collection."""
    gc.collect(1)
    if not gc.get_freeze_count():  # objects that the user froze stay frozen
        gc.freeze()
        gc.unfreeze()


def trim_memory() -> None:
    """Collect reference cycles (graphs are, with their weights) and return free memory to the
    system: glibc keeps it otherwise, and later allocations come on top."""
    gc.collect(1)
    return_free_memory()


def return_free_memory() -> None:
    """Return free memory to the system, without a collection: one in the middle of a conversion
    would make what is in use old, and it would stay when it is dropped."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


def _load_malloc_trim() -> Callable[[int], object] | None:
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return None
    return trim


_MALLOC_TRIM = _load_malloc_trim()
