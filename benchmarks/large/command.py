"""Conversions by blocks as processes that are measured: time, peak memory, result."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from limit import Group, forgotten, limited

__all__ = ["Ran", "content", "measured", "run", "words"]


@dataclass(frozen=True)
class Ran:
    """seconds: of wall time; cpu: of one core. peak: resident memory in MiB, with mapped files.
    group: MiB that its control group had, with all pages of files; None without a limit. said: its
    output."""

    seconds: float
    cpu: float
    peak: float
    group: float | None
    said: str

    def __str__(self) -> str:
        group = "" if self.group is None else f", group {self.group:.0f} MiB"
        return f"{self.seconds:.0f} s ({self.cpu:.0f} s of a core), peak {self.peak:.0f} MiB{group}"


def words(path: Path, samples: int, length: int, count: int) -> Path:
    """A file of token ids [samples, length], drawn among `count`."""
    ids = np.random.default_rng(0).integers(0, count, (samples, length))
    np.savez(path, input_ids=ids)
    return path


def arguments(folder: Path, data: Path, out: Path, *more: str) -> list[str]:
    sizes = ("--dynamic", "input_ids:0=batch", "--dynamic", "input_ids:1=sequence")
    chosen = ("--mode", "weight-only-int4", "--accuracy", "balanced", "--seconds", "0")
    command = (sys.executable, "-m", "qtool", "quantize", str(folder), "--data", str(data))
    return [*command, *sizes, *chosen, "-o", str(out), *more]


def run(folder: Path, data: Path, out: Path, *more: str, limit: int = 0) -> Ran:
    """`qtool quantize` to its end; see `measured`."""
    return measured(arguments(folder, data, out, *more), limit, folder)


def measured(command: Sequence[str], limit: int = 0, *read: Path) -> Ran:
    """A command to its end; raises CalledProcessError where it fails.

    Args:
        limit: of memory in MiB; 0: none. read: folders that it reads, dropped from memory before.
    """
    if not limit:
        return _measured(command, None)
    for folder in read:
        forgotten(folder)
    with limited(limit << 20) as group:
        return _measured(command, group)


def _measured(command: Sequence[str], group: Group | None) -> Ran:
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=group and group.enter,  # noqa: PLW1509  # no threads here
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, said)
    taken = time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return Ran(*taken, group and group.peak, said)


def content(out: Path) -> str:
    """A hash of the result: its files' names and bytes."""
    digest = hashlib.sha256()
    for file in sorted(out.parent.glob(f"{out.name}*")):
        digest.update(file.name.encode())
        with file.open("rb") as opened:
            while block := opened.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()[:16]
