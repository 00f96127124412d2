"""Files appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qtool.errors import FileError

__all__ = ["atomic_path", "check_writable", "write_atomic"]


def check_writable(path: str | Path) -> None:
    """Raises FileError if no file can be written at `path`: said before long work, not after."""
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        raise FileError(f"cannot write {target}: it is a directory; name a file")
    if not folder.is_dir():
        raise FileError(
            f"cannot write {target}: the directory {folder} does not exist; create it first"
        )
    if not os.access(folder, os.W_OK):
        raise FileError(f"cannot write {target}: the directory {folder} is not writable")


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`; renamed to it on success, removed on any failure."""
    check_writable(path)
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name}.", suffix=".part"
        )
        os.close(handle)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}") from error
    temporary = Path(name)
    try:
        yield temporary
        _publish(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _publish(temporary: Path, target: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    try:
        temporary.chmod(0o666 & ~umask)  # mkstemp makes it private
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}") from error


def write_atomic(path: str | Path, data: bytes) -> None:
    """Writes a whole file, or leaves what was there."""
    with atomic_path(path) as temporary:
        try:
            temporary.write_bytes(data)
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror or error}") from error
