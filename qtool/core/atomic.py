"""Atomic file output: a file appears whole or not at all, even if the process is killed.

Missing folders of an output are made with it, and removed again if it fails. Data is written to a
temporary file next to the target, locked while its process lives. A killed process releases the
lock, and the next writer in that folder removes the file. Windows has no such locks, and it neither
renames nor removes open files: there, nothing is kept open.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from qtool.core.errors import FileError
from qtool.core.remedies import OtherFile
from qtool.core.shield import defer_signals

fcntl: Any = None  # a system without such locks keeps the files of killed processes
with suppress(ImportError):
    fcntl = import_module("fcntl")

_PART = ".qtool.part"
_SCRATCH = ".qtool-scratch-"


def check_writable(
    path: str | Path, *read: str | Path | None, suffixes: Sequence[str] = ()
) -> None:
    """Check that a file can be written, before long work.

    Args:
        path: file to write.
        read: inputs of the command, which must be other files.
        suffixes: file name extensions of which the file must have one, such as ".onnx"; any without
            them.

    Raises:
        FileError: it cannot be written, or is one of the inputs.
    """
    target = resolve(path)
    folder = target.parent
    for source in (r for r in read if r is not None and target.exists()):
        # a module's name may be too long for a path, for which Path.exists raises
        if os.path.exists(source) and target.samefile(source):  # noqa: PTH110
            raise FileError(
                f"cannot write {path}: {source} is an input", OtherFile("name another file")
            )
    if target.is_dir():
        raise FileError(f"cannot write {path}: it is a directory", OtherFile("name a file"))
    if target.exists() and not target.is_file():
        raise FileError(
            f"cannot write {path}: it is a pipe or a device", OtherFile("name an ordinary file")
        )
    if suffixes and target.suffix.lower() not in suffixes:
        named = Path(path).with_suffix(suffixes[0]).name
        raise FileError(
            f"cannot write {path}: models are written as {' or '.join(suffixes)}",
            OtherFile(f"name the file {named}"),
        )
    check_folders(path, folder)


def check_folders(path: str | Path, folder: Path) -> None:
    """Check that a file can be written to `folder`, which need not exist.

    Args:
        path: path of the file, for the message.
        folder: resolved.

    Raises:
        FileError: it is not a folder, or it or the first existing folder above is not writable.
    """
    existing = next(f for f in (folder, *folder.parents) if os.path.lexists(f))
    if not existing.is_dir():
        raise FileError(
            f"cannot write {path}: {existing} is not a directory", OtherFile("name another one")
        )
    if not os.access(existing, os.W_OK):
        raise FileError(f"cannot write {path}: the directory {existing} is not writable")


@contextmanager
def make_folders(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; those that were made are removed again on failure.

    Raises:
        OSError: it cannot be made.
    """
    made: list[Path] = []
    try:
        missing = [f for f in (folder, *folder.parents) if not f.is_dir()]
        for each in reversed(missing):
            with defer_signals(), suppress(FileExistsError):  # another process made it
                each.mkdir()
                made.append(each)
        yield
    except BaseException:
        for each in reversed(made):
            with suppress(OSError):  # it has other files by now
                each.rmdir()
        raise


def resolve(path: str | Path) -> Path:
    """Return the target of links, so that a link stays and its file is written.

    Raises:
        FileError: the name is invalid.
    """
    try:
        target = Path(path)
        str(target).encode()
        target = target.resolve()
        target.exists()
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise FileError(
            f"cannot write {str(path)!a}: {why}", OtherFile("name another file")
        ) from error
    return target


@contextmanager
def atomic_path(path: str | Path, suffixes: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a temporary path next to `path`, renamed to it on success and removed on failure.

    Args:
        path: file to write.
        suffixes: see `check_writable`.

    Raises:
        FileError: `path` cannot be written, or writing the temporary file fails.
    """
    check_writable(path, suffixes=suffixes)
    target = resolve(path)
    try:
        with (
            make_folders(target.parent),
            _temporary(target.parent, _prefix(target), _PART, _new_file) as temporary,
        ):
            yield temporary
            _publish(temporary, target)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error


def _prefix(target: Path) -> str:
    return f".{target.name[:60]}."


def _publish(temporary: Path, target: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~umask
    with temporary.open("r+b") as file:  # Windows syncs files only that are open for writing
        os.fsync(file.fileno())
    temporary.chmod(mode)  # mkstemp makes it private
    temporary.replace(target)


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write a whole file, or leave the old one."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder, removed afterwards.

    Raises:
        FileError: it cannot be created.
    """
    with ExitStack() as stack:
        try:
            place = Path(tempfile.gettempdir())
            folder = stack.enter_context(_temporary(place, _SCRATCH, "", _new_folder))
        except OSError as error:
            raise FileError(f"cannot create a temporary folder: {error}") from error
        yield folder


@contextmanager
def sibling_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `target`, removed at the end if still there.

    Raises:
        OSError: it cannot be created.
    """
    with (
        make_folders(target.parent),
        _temporary(target.parent, _prefix(target), _PART, _new_folder) as folder,
    ):
        yield folder


Maker = Callable[[Path, str, str], Path]
"""(folder, prefix, suffix) -> path of a new file or folder."""


@contextmanager
def _temporary(place: Path, prefix: str, suffix: str, make: Maker) -> Iterator[Path]:
    """Yield a new file or folder, locked, and remove it at the end if it is still there.

    Signals are deferred while it is made and removed: one between the creation and the `try`, or
    during the removal, would leave it.
    """
    _sweep(place, prefix, suffix)
    created: list[tuple[int | None, Path]] = []
    try:
        with defer_signals():
            created.append(_locked(lambda: make(place, prefix, suffix)))
        yield created[0][1]
    finally:
        with defer_signals():
            for handle, path in created:
                _remove(path)
                if handle is not None:
                    os.close(handle)


def _new_file(place: Path, prefix: str, suffix: str) -> Path:
    handle, name = tempfile.mkstemp(dir=place, prefix=prefix, suffix=suffix)
    os.close(handle)
    return Path(name)


def _new_folder(place: Path, prefix: str, suffix: str) -> Path:
    return Path(tempfile.mkdtemp(dir=place, prefix=prefix, suffix=suffix))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _locked(make: Callable[[], Path]) -> tuple[int | None, Path]:
    """Make a file or folder and lock it; again if another process swept it before.

    Returns:
        The handle with the lock, None on a system without locks; the path.
    """
    while True:
        path = make()
        if fcntl is None:
            return None, path
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if path.exists():
            return handle, path
        os.close(handle)


def _sweep(folder: Path, prefix: str, suffix: str) -> None:
    """Remove the files and folders of killed processes; locked ones are in use."""
    if fcntl is None:
        return
    for left in folder.iterdir():
        if not (left.name.startswith(prefix) and left.name.endswith(suffix)) or left.is_symlink():
            continue
        try:
            handle = os.open(left, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # removed meanwhile, or of another user
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(left)
        except OSError:
            pass
        finally:
            os.close(handle)
