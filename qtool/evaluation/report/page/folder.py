"""A folder of files that appears whole: a reader meets the old report or the new one."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from qtool.core.atomic import resolve, sibling_folder
from qtool.core.errors import FileError

MODEL = "model.int8.onnx"
_FILES = frozenset({"report.json", "report.md", "report.html", MODEL})
_DATA = re.compile(rf"{re.escape(MODEL)}(\.\w+)?\.data")  # of a model in two files
_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE, AT_FDCWD of renameat2(2)


def _is_part(name: str) -> bool:
    return name in _FILES or _DATA.fullmatch(name) is not None


def check_folder(folder: Path) -> None:
    """Raises FileError if a report could not be written there: said before the work, not after.

    A folder that holds anything but a report is refused, since it would be replaced.
    """
    parent = resolve(folder).parent
    if folder.exists() and not folder.is_dir():
        raise FileError(f"cannot write {folder}: it is a file; name a folder for the report")
    if folder.is_dir():
        foreign = sorted(p.name for p in folder.iterdir() if not _is_part(p.name))
        if foreign:
            raise FileError(
                f"{folder} holds '{foreign[0]}', which is no part of a report; name a new folder"
            )
    if not parent.is_dir():
        raise FileError(
            f"cannot write {folder}: the directory {parent} does not exist; create it first"
        )
    if not os.access(parent, os.W_OK):
        raise FileError(f"cannot write {folder}: the directory {parent} is not writable")


def resume_folder(folder: Path) -> Path:
    """Where a run that is to write `folder` keeps what it measured so far."""
    target = resolve(folder)
    return target.parent / f".{target.name}.resume"


def replace_folder(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Writes the files as `folder`, in place of what was there: contents, or copies of files.

    They are written to a folder beside it, which then takes its place in one step of the file
    system.

    Raises:
        FileError: it cannot be written.
    """
    foreign = [name for name in files if not _is_part(name)]
    assert not foreign, f"not part of a report: {foreign}"
    check_folder(folder)
    target = resolve(folder)
    try:
        with sibling_folder(target) as temporary:
            temporary.chmod(_mode())
            for name, data in files.items():
                _write(temporary / name, data)
            _sync(temporary)
            _replace(temporary, target)
            _sync(target.parent)
    except OSError as error:
        raise FileError(f"cannot write {folder}: {error.strerror or error}") from error


def _mode() -> int:
    """Of an ordinary new folder."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o777 & ~umask


def _write(path: Path, data: bytes | Path) -> None:
    with path.open("wb") as file:
        if isinstance(data, Path):
            with data.open("rb") as source:
                shutil.copyfileobj(source, file)  # weights may be more than the memory holds
        else:
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(new: Path, old: Path) -> None:
    """Puts `new` where `old` is; afterwards what was there, if anything, is at `new`."""
    if not old.exists():
        new.rename(old)
        return
    if _exchange(new, old):
        return
    made = sorted(new.iterdir(), reverse=True)  # data before the model that names it
    for file in made:  # each file whole, where folders cannot be exchanged
        file.replace(old / file.name)
    names = {file.name for file in made}
    for file in old.iterdir():
        if _is_part(file.name) and file.name not in names:
            file.unlink()


def _exchange(a: Path, b: Path) -> bool:
    """Exchanges two paths in one step; False where the system cannot."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if call(_HERE, os.fsencode(a), _HERE, os.fsencode(b), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code))
