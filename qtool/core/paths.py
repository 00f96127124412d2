"""Checks for files and folders that accept invalid names (NUL, too long, circular links), for which
pathlib raises."""

from __future__ import annotations

import os
from collections.abc import Iterable


def is_file(path: str | os.PathLike[str]) -> bool:
    return _is_name(path) and os.path.isfile(path)  # noqa: PTH113


def is_dir(path: str | os.PathLike[str]) -> bool:
    return _is_name(path) and os.path.isdir(path)  # noqa: PTH112


def is_special_file(path: str | os.PathLike[str]) -> bool:
    """Return whether it is neither file nor folder: reading a pipe or a device may never end."""
    return not _is_name(path) or (os.path.exists(path) and not (is_file(path) or is_dir(path)))  # noqa: PTH110


def same_file(paths: Iterable[str | os.PathLike[str]]) -> tuple[str, str] | None:
    """Return the first two paths of one file, None if each path has a file of its own."""
    seen: dict[str, str] = {}
    for path in map(str, paths):
        real = os.path.realpath(path)
        if real in seen:
            return seen[real], path
        seen[real] = path
    return None


def _is_name(path: object) -> bool:
    """Return whether it is a path: a number is an open file."""
    return isinstance(path, str | os.PathLike)
