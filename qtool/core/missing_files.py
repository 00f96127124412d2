"""The error of a path with nothing under it."""

from __future__ import annotations

import os
from pathlib import Path

from qtool.core.errors import CaptureError, QtoolError


def missing(path: str | os.PathLike[str], kind: type[QtoolError], what: str = "file") -> QtoolError:
    """Return the error that there is no such file.

    Args:
        path: as the user wrote it.
        kind: class of the error.
        what: that is missing.
    """
    return kind(f"{path}: no such {what}")


def check_task_folder(source: str, task: str | None) -> None:
    """Check that there is something at the path that a task is for.

    Raises:
        CaptureError: there is nothing.
    """
    if task is not None and ":" not in source and not Path(source).exists():
        raise missing(source, CaptureError, "folder")
