"""A model that is measured: its file, and the files to time in place of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qtool.backends.model_file import ModelFile
from qtool.planning.plan import MODE_NAMES


@dataclass(frozen=True)
class Subject:
    """A model that is measured.

    Attributes:
        name: its name.
        file: whose outputs, size and operators are measured.
        origin: where it comes from, in words.
        timed_name: the file that was timed, where this is the reference, in words.
        size_bytes: size of the user's file, which `file` was written from; 0: that of `file`.
        timed: the file to time; None: `file`.
        profiled: the file whose nodes are timed; None: `file`.
    """

    name: str
    file: Path
    origin: str
    timed_name: str = ""
    size_bytes: int = 0
    timed: Path | None = None
    profiled: Path | None = None


def quantized_subject(file: ModelFile) -> Subject:
    """Return a quantized file next to its float model."""
    conversion = file.conversion()
    name = MODE_NAMES["static" if conversion is None else conversion.info.recipe.mode]
    return Subject(name, file.path, f"the file {file.path.name}, made by {file.maker}")
