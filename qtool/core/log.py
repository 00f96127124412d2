"""Notes and warnings while the library works, through the logger "qtool"."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("qtool")


def log_note(text: str) -> None:
    """Log what was done with an input that was not used as it is."""
    LOGGER.warning("note: %s", text)


def log_warning(text: str) -> None:
    """Log that a result may be meaningless, before it is made."""
    LOGGER.warning("warning: %s", text)


@contextmanager
def unlogged() -> Iterator[None]:
    """Log nothing: what is said here is said again by the work that follows."""

    def drop(_: logging.LogRecord) -> bool:
        return False

    LOGGER.addFilter(drop)
    try:
        yield
    finally:
        LOGGER.removeFilter(drop)
