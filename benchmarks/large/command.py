"""`qtool blockwise` on a folder, as a process that is measured: time, peak memory, result."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Ran", "content", "run", "words"]


@dataclass(frozen=True)
class Ran:
    """seconds: of wall time. peak: resident memory in MiB, with mapped files. said: its output."""

    seconds: float
    peak: float
    said: str


def words(path: Path, samples: int, length: int, count: int) -> Path:
    """A file of token ids [samples, length], drawn among `count`."""
    ids = np.random.default_rng(0).integers(0, count, (samples, length))
    np.savez(path, input_ids=ids)
    return path


def arguments(folder: Path, data: Path, out: Path, *more: str) -> list[str]:
    sizes = ("--dynamic", "input_ids:0=batch", "--dynamic", "input_ids:1=sequence")
    chosen = ("--mode", "weight-only-int4", "--accuracy", "balanced")
    command = (sys.executable, "-m", "qtool", "blockwise", str(folder), "--data", str(data))
    return [*command, *sizes, *chosen, "-o", str(out), *more]


def run(folder: Path, data: Path, out: Path, *more: str, limit: int = 0) -> Ran:
    """A run to its end; raises CalledProcessError where it fails.

    limit: of address space in MiB; 0: none.
    """
    begin = time.monotonic()
    process = subprocess.Popen(
        arguments(folder, data, out, *more),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=(lambda: _limit(limit << 20)) if limit else None,  # noqa: PLW1509  # no threads here
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, "qtool blockwise", said)
    return Ran(time.monotonic() - begin, used.ru_maxrss / 1024, said)


def _limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def content(out: Path) -> str:
    """A hash of the result: its files' names and bytes."""
    digest = hashlib.sha256()
    for file in sorted(out.parent.glob(f"{out.name}*")):
        digest.update(file.name.encode())
        with file.open("rb") as opened:
            while block := opened.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()[:16]
