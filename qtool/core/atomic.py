"""Files appear whole or not at all, and nothing else is left: not by a kill either.

What is being written lies beside its place under a name of qtool's, locked as long as its process
lives. A process that is killed lets go of the lock; whoever writes there next removes what it left.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from qtool.core.errors import FileError
from qtool.core.shield import defer_signals

fcntl: Any = None  # without such locks on a system, what a kill leaves stays
with suppress(ImportError):
    fcntl = import_module("fcntl")

_PART = ".qtool.part"
_SCRATCH = ".qtool-scratch-"


def check_writable(path: str | Path, *read: str | Path | None) -> None:
    """Raises FileError if no file can be written at `path`, or it is one of those that are `read`:
    said before long work, not after."""
    target = resolve(path)
    folder = target.parent
    for given in (r for r in read if r is not None and target.exists()):
        # a module's name may be too long for a path, for which Path.exists raises
        if os.path.exists(given) and target.samefile(given):  # noqa: PTH110
            raise FileError(f"cannot write {path}: {given} is read; name another file")
    if target.is_dir():
        raise FileError(f"cannot write {path}: it is a directory; name a file")
    if target.exists() and not target.is_file():
        raise FileError(f"cannot write {path}: it is {_kind(target)}; name an ordinary file")
    if not folder.is_dir():
        shown = folder if Path(path).is_symlink() else Path(path).parent
        raise FileError(
            f"cannot write {path}: the directory {shown} does not exist; create it first"
        )
    if not os.access(folder, os.W_OK):
        raise FileError(f"cannot write {path}: the directory {folder} is not writable")


def resolve(path: str | Path) -> Path:
    """Where links lead, so that a file is written and its link stays.

    Raises:
        FileError: no file can be called so.
    """
    try:
        target = Path(path)
        str(target).encode()
        target = target.resolve()
        target.exists()
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise FileError(f"cannot write {str(path)!a}: {why}; name another file") from error
    return target


def _kind(path: Path) -> str:
    mode = path.stat().st_mode
    kinds: tuple[tuple[Callable[[int], bool], str], ...] = (
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for test, name in kinds if test(mode)), "a device")


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`; renamed to it on success, removed on any failure.

    Raises:
        FileError: it cannot be written; also where writing the temporary file fails.
    """
    check_writable(path)
    target = resolve(path)
    try:
        with _own(target.parent, _prefix(target), _PART, _new_file) as temporary:
            yield temporary
            _publish(temporary, target)
    except OSError as error:
        raise _refused(path, error) from error


def _prefix(target: Path) -> str:
    return f".{target.name[:60]}."


def _refused(path: str | Path, error: OSError) -> FileError:
    return FileError(f"cannot write {path}: {error.strerror or error}")


def _publish(temporary: Path, target: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~umask
    temporary.chmod(mode)  # mkstemp makes it private
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(target)


def write_atomic(path: str | Path, data: bytes) -> None:
    """Writes a whole file, or leaves what was there."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for files that nobody else needs, gone afterwards.

    Raises:
        FileError: there is no place for it.
    """
    with ExitStack() as stack:
        try:
            place = Path(tempfile.gettempdir())
            folder = stack.enter_context(_own(place, _SCRATCH, "", _new_folder))
        except OSError as error:
            raise FileError(f"there is no place for temporary files: {error}") from error
        yield folder


def is_abandoned(folder: Path) -> bool:
    """Whether the process that made a scratch folder is gone; False where nobody can tell, on
    another machine for one."""
    if fcntl is None:
        return False
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def sibling_folder(target: Path) -> AbstractContextManager[Path]:
    """A folder beside `target`, to take its place; what is there at the end is removed.

    Raises:
        OSError: it cannot be made.
    """
    return _own(target.parent, _prefix(target), _PART, _new_folder)


Maker = Callable[[Path, str, str], tuple[int, Path]]
"""Makes a new file or folder in a folder, with this prefix and suffix; and a handle of it."""


@contextmanager
def _own(place: Path, prefix: str, suffix: str, make: Maker) -> Iterator[Path]:
    """What `make` makes, locked, and removed at the end if it is still there.

    Signals wait while it is made and while it is removed: one that came between the making and the
    `try`, or within the removal, would leave it.
    """
    _sweep(place, prefix, suffix)
    held: list[tuple[int, Path]] = []
    try:
        with defer_signals():
            held.append(_locked(lambda: make(place, prefix, suffix)))
        yield held[0][1]
    finally:
        with defer_signals():
            for handle, path in held:
                _remove(path)
                os.close(handle)


def _new_file(place: Path, prefix: str, suffix: str) -> tuple[int, Path]:
    handle, name = tempfile.mkstemp(dir=place, prefix=prefix, suffix=suffix)
    return handle, Path(name)


def _new_folder(place: Path, prefix: str, suffix: str) -> tuple[int, Path]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=place, prefix=prefix, suffix=suffix))
        with suppress(FileNotFoundError):  # somebody swept it in between
            return os.open(folder, os.O_RDONLY), folder


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _locked(make: Callable[[], tuple[int, Path]]) -> tuple[int, Path]:
    """What was made, once it is locked; made again where somebody swept it before it was."""
    while True:
        handle, path = make()
        with suppress(OSError, AttributeError):  # a file system, or a system, without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if path.exists():
            return handle, path
        os.close(handle)


def _sweep(folder: Path, prefix: str, suffix: str) -> None:
    """Removes what killed runs left under such names. What is locked is in use."""
    if fcntl is None:
        return
    for left in folder.iterdir():
        if not (left.name.startswith(prefix) and left.name.endswith(suffix)) or left.is_symlink():
            continue
        try:
            handle = os.open(left, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # gone already, or somebody else's
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(left)
        except OSError:
            pass
        finally:
            os.close(handle)
