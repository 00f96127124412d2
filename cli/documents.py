"""What the commands alone print with --json, as dataclasses; `document_table` has all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qtool.blockwise.checkpoint import BlockRecord


@dataclass(frozen=True)
class Envelope:
    """The first keys of every document.

    Attributes:
        schema: raised when a key of the command's document is removed or changes its meaning.
        command: the command that printed the document.
        qtool: version of qtool.
    """

    schema: int
    command: str
    qtool: str


@dataclass(frozen=True)
class ErrorText:
    """An error.

    Attributes:
        type: class of the exception.
        message: one sentence.
        exit_code: exit code of the command.
    """

    type: str
    message: str
    exit_code: int


@dataclass(frozen=True)
class Error:
    """Printed instead of a command's document if it fails.

    Attributes:
        error: what went wrong.
    """

    error: ErrorText


@dataclass(frozen=True)
class CalibrationFile:
    """A calibration file that was written.

    Attributes:
        file: its path.
        samples: number of calibration samples.
        tensors: number of tensors with statistics.
        observer: range estimator, with its parameter.
        notes: sentences for the user.
    """

    file: Path
    samples: int
    tensors: int
    observer: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Blocks:
    """How a file was converted block by block.

    Attributes:
        blocks: records of a block-wise conversion, in order.
    """

    blocks: tuple[BlockRecord, ...]


@dataclass(frozen=True)
class Outcome:
    """What the exit code says of a file that was written.

    Attributes:
        passed: whether the checks passed and all goals are met.
    """

    passed: bool


@dataclass(frozen=True)
class WrittenFile:
    """A model's file that was written.

    Attributes:
        file: its path.
    """

    file: Path
