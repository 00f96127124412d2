"""Memory of this process: what it may still use, when garbage is collected, what glibc keeps."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes a number near 2^63 for no limit


_GC_THRESHOLD = 100_000
"""New objects that start a garbage collection while torch traces or a conversion runs. At Python's
default of 700 collections walk through all objects of torch several times, a tenth of the time."""


def available_memory(proc: Path = _PROC, groups: Path = _GROUPS) -> int | None:
    """Return the free memory in bytes, within the limits of the control groups; None where the
    system does not tell.

    Page cache that can be dropped counts as free.

    Args:
        proc: the kernel's folder with meminfo and self/cgroup.
        groups: where control groups of version 1 or 2 are mounted.
    """
    sizes = _numbers(proc / "meminfo")
    free = [1024 * sizes["MemAvailable"]] if "MemAvailable" in sizes else []
    free += _free_in_groups(proc, groups)
    return min(free, default=None)


def _free_in_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yield what is free in each control group that this process is in, up to the root."""
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files = ("memory.max", "memory.current", "inactive_file")
            yield from _free_in_path(groups, path, files)
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _free_in_path(groups / "memory", path, files)


def _free_in_path(root: Path, path: str, files: tuple[str, str, str]) -> Iterator[int]:
    """Yield what is free in a group and in those around it.

    In a container the path may be that of the host; the root is the container's group then.

    Args:
        files: names of the files with the limit and the use of a group; name of its droppable page
            cache in memory.stat.
    """
    limit_file, used_file, cache = files
    group = root / path.strip("/")
    for each in (group, *group.parents):
        limit, used = (_text(each / name).strip() for name in (limit_file, used_file))
        if limit.isdecimal() and used.isdecimal() and int(limit) < _NO_LIMIT:
            droppable = _numbers(each / "memory.stat").get(cache, 0)
            yield max(0, int(limit) - int(used) + droppable)
        if each == root:
            return


def _numbers(file: Path) -> Mapping[str, int]:
    """Return name -> number of a file with a name and a number in each line."""
    words = [line.replace(":", " ").split() for line in _text(file).splitlines()]
    return {w[0]: int(w[1]) for w in words if len(w) > 1 and w[1].isdecimal()}


def _text(file: Path) -> str:
    """Return the content of a file of the kernel; "" where there is none."""
    try:
        return file.read_text()
    except (OSError, ValueError):
        return ""


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Collect garbage rarely in this context; never if collection is turned off."""
    young, *older = gc.get_threshold()
    if young:
        gc.set_threshold(max(young, _GC_THRESHOLD), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        if 0 < young < _GC_THRESHOLD and gc.isenabled():
            _promote_survivors()


def _promote_survivors() -> None:
    """Collect the young generations and move the survivors to the oldest one, so that Python starts
    no full collection."""
    gc.collect(1)
    if not gc.get_freeze_count():  # objects that the user froze stay frozen
        gc.freeze()
        gc.unfreeze()


def trim_memory() -> None:
    """Collect reference cycles (graphs are, with their weights) and return free memory to the
    system: glibc keeps it otherwise, and later allocations come on top."""
    gc.collect(1)
    return_free_memory()


def return_free_memory() -> None:
    """Return free memory to the system, without a collection: one in the middle of a conversion
    would make what is in use old, and it would stay when it is dropped."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


def _load_malloc_trim() -> Callable[[int], object] | None:
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return None
    return trim


_MALLOC_TRIM = _load_malloc_trim()
