"""What Windows refuses that Linux allows, for tests of files.

Only the refusals that qtool meets: folders cannot be opened, open files can be neither renamed nor
removed nor replaced, a file that is open for reading cannot be synced, there are no locks of fcntl
and the process itself is no library of ctypes.
"""

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qtool.blockwise import checkpoint
from qtool.core import atomic

HANDLES = Path("/proc/self/fd")


def _is_open(path: Path) -> bool:
    target = str(path.resolve())
    links = (str(link.readlink()) for link in HANDLES.iterdir() if link.is_symlink())
    return target in links


def _refuse_open_files(function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(path: Path, *others: Any, **options: Any) -> Any:
        for each in (path, *others):
            if isinstance(each, str | Path) and _is_open(Path(each)):
                raise PermissionError(errno.EACCES, "used by another process", str(each))
        return function(path, *others, **options)

    return guarded


def like_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process refuse what Windows refuses."""
    if not HANDLES.is_dir():
        pytest.skip("open files are read from /proc")
    open_, fsync, library = os.open, os.fsync, ctypes.CDLL

    def open_file(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(os.fsdecode(path)).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_(path, *arguments, **options)

    def sync(handle: int) -> None:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        fsync(handle)

    def load(name: str | None, *arguments: Any, **options: Any) -> Any:
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        return library(name, *arguments, **options)

    for module in (atomic, checkpoint):
        monkeypatch.setattr(module, "fcntl", None)
    monkeypatch.setattr(shutil, "_use_fd_functions", False)  # rmtree by names, as there
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(ctypes, "CDLL", load)
    for name in ("replace", "rename", "unlink"):
        monkeypatch.setattr(Path, name, _refuse_open_files(getattr(Path, name)))
