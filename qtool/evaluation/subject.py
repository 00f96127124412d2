"""A model that a report is made of: its file, and the files to time in place of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class FloatFiles(Protocol):
    """The float files of a model: see `Baseline`."""

    @property
    def timed(self) -> Path:
        """The file that speed is relative to."""

    @property
    def profiled(self) -> Path:
        """The file that times of nodes are relative to."""

    @property
    def name(self) -> str:
        """What a speed is relative to, in words."""

    @property
    def size_bytes(self) -> int:
        """Size of the user's float file; 0: that of the file."""


@dataclass(frozen=True)
class Subject:
    """A model to report on.

    Attributes:
        name: name in the report.
        file: whose outputs, size and operators are reported.
        origin: where it comes from, in words.
        baseline: files to time, where this is the float model; None for another one.
        timed_name: the file that was timed, where this is the reference, in words.
        size_bytes: size of the user's file, which `file` was written from; 0: that of `file`.
    """

    name: str
    file: Path
    origin: str
    baseline: FloatFiles | None = None
    timed_name: str = ""
    size_bytes: int = 0

    @property
    def timed(self) -> Path:
        """The file to time."""
        return self.file if self.baseline is None else self.baseline.timed

    @property
    def profiled(self) -> Path:
        """The file whose nodes are timed."""
        return self.file if self.baseline is None else self.baseline.profiled
