"""Whether there is a file or a folder. Of a name that none can have, too (NUL, longer than the
system takes, a circle of links), for which pathlib raises."""

from __future__ import annotations

import os

__all__ = ["is_dir", "is_file"]


def is_file(path: str | os.PathLike[str]) -> bool:
    return os.path.isfile(path)  # noqa: PTH113


def is_dir(path: str | os.PathLike[str]) -> bool:
    return os.path.isdir(path)  # noqa: PTH112
