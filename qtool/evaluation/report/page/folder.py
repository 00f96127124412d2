"""Atomic replacement of a report folder: readers see the old report or the new one, never a mix."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from qtool.core.atomic import check_folders, resolve, sibling_folder
from qtool.core.errors import FileError
from qtool.core.remedies import OtherFile

_FILES = frozenset({"report.json", "report.md", "report.html"})
_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE, AT_FDCWD of renameat2(2)


def check_folder(folder: Path) -> None:
    """Raise FileError if a report cannot be written there; called before any measurement.

    A folder with other files is refused, since it would be replaced.
    """
    parent = resolve(folder).parent
    if folder.exists() and not folder.is_dir():
        raise FileError(
            f"cannot write {folder}: it is a file", OtherFile("choose a folder for the report")
        )
    if folder.is_dir():
        foreign = sorted(p.name for p in folder.iterdir() if p.name not in _FILES)
        if foreign:
            raise FileError(
                f"{folder} holds '{foreign[0]}', which is not part of a report",
                OtherFile("choose a new folder"),
            )
    check_folders(folder, parent)


def replace_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files as `folder`, replacing an old one.

    They are written to a folder next to it, which is then exchanged with it in one system call.

    Raises:
        FileError: it cannot be written.
    """
    assert files.keys() <= _FILES
    check_folder(folder)
    target = resolve(folder)
    try:
        with sibling_folder(target) as temporary:
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o777 & ~umask)
            for name, data in files.items():
                _write(temporary / name, data)
            _sync(temporary)
            _replace(temporary, target)
            _sync(target.parent)
    except OSError as error:
        raise FileError(f"cannot write {folder}: {error.strerror or error}") from error


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows does not open folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(new: Path, old: Path) -> None:
    """Move `new` to `old`; an existing `old` is exchanged with it."""
    if not old.exists():
        new.rename(old)
        return
    if _exchange(new, old):
        return
    names = {file.name for file in new.iterdir()}
    for name in names:  # folders cannot be exchanged here: replace file by file
        (new / name).replace(old / name)
    for name in _FILES - names:
        (old / name).unlink(missing_ok=True)


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two paths atomically; return False if the system does not support it."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # TypeError: Windows
        return False
    if call(_HERE, os.fsencode(a), _HERE, os.fsencode(b), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code))
