"""A limit of memory that a process cannot get round: a control group, of version 1 or 2.

A limit of the address space counts what is mapped, however little of it is in memory; a control
group counts memory, with the pages of files that the process has read, which it can lose again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Group", "forgotten", "limited"]

_ROOTS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))  # of version 1, and of 2
_LIMIT = ("memory.limit_in_bytes", "memory.max")
_PEAK = ("memory.max_usage_in_bytes", "memory.peak")


@dataclass(frozen=True)
class Group:
    """A control group of its own."""

    folder: Path

    def enter(self) -> None:
        """Puts the calling process into it."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def peak(self) -> float:
        """MiB that it had at most, with pages of files."""
        return int(_first(self.folder, _PEAK).read_text()) / 2**20


@contextmanager
def limited(size: int) -> Iterator[Group]:
    """A group that may have so many bytes, and no swap; removed at the end.

    Raises:
        SystemExit: none can be made.
    """
    for root in _ROOTS:
        folder = root / f"qtool-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            found = Group(folder)
            _first(folder, _LIMIT).write_text(str(size))
            _first(folder, _PEAK)
            for swap in (folder / "memory.swappiness", folder / "memory.swap.max"):
                if swap.exists():
                    swap.write_text("0")
        except (OSError, FileNotFoundError):
            folder.rmdir()
            continue
        try:
            yield found
        finally:
            folder.rmdir()
        return
    raise SystemExit("no control group with a limit of memory can be made here: it takes root")


def _first(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(folder)


def forgotten(model: Path) -> None:
    """Drops the pages of a folder's files, or of a file and those called like it: those in memory
    count for whoever read them first."""
    for file in model.rglob("*") if model.is_dir() else model.parent.glob(f"{model.name}*"):
        if file.is_file():
            number = os.open(file, os.O_RDONLY)
            os.fsync(number)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(number)
