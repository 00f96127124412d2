"""Notes and warnings while the library works, through the logger "qtool"."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("qtool")


def log_note(text: str) -> None:
    """Log what was done with an input that was not used as it is."""
    LOGGER.warning("note: %s", text)


def log_warning(text: str) -> None:
    """Log that a result may be meaningless, before it is made."""
    LOGGER.warning("warning: %s", text)
