"""Whether there is a file or a folder. Of a name that none can have, too (NUL, longer than the
system takes, a circle of links), for which pathlib raises."""

from __future__ import annotations

import os


def is_file(path: str | os.PathLike[str]) -> bool:
    return _is_name(path) and os.path.isfile(path)  # noqa: PTH113


def is_dir(path: str | os.PathLike[str]) -> bool:
    return _is_name(path) and os.path.isdir(path)  # noqa: PTH112


def is_special_file(path: str | os.PathLike[str]) -> bool:
    """Whether it is neither a file nor a folder: a pipe may wait for ever, a device never end."""
    return not _is_name(path) or (os.path.exists(path) and not (is_file(path) or is_dir(path)))  # noqa: PTH110


def _is_name(path: object) -> bool:
    """Not a number, which is a file that is open already."""
    return isinstance(path, str | os.PathLike)
