"""The exceptions of qtool. Every message says what is wrong, where, and what to do.

QtoolError
|-- CaptureError        the model cannot be captured as a graph
|-- PassError           a graph rewrite broke its contract (a bug in qtool)
|-- DataError           calibration or evaluation data is unusable
|-- CalibrationError    a calibration is empty, damaged, or of another model or plan
|-- OptionError         an option or a goal is out of its range
|-- PlanError           the model cannot be quantized for this target
|-- KernelError         an integer kernel cannot represent its parameters or inputs
|-- ExportError         the model cannot be written as ONNX
|-- VerificationError   the exported file does not compute what the plan says
|-- EmulationError      a processor cannot be emulated here, or its emulation failed
|-- RanksError          processes of a group differ, or one of them failed
|-- FileError           a file cannot be read or written
`-- InstallError        a package is not installed
"""

from __future__ import annotations

import os
import re
from collections import abc
from contextlib import contextmanager

from qtool.core.remedies import Remedy, sentence_with


class QtoolError(Exception):
    """Base of all errors for the user. The CLI prints them without a traceback.

    The message is one printable line, whatever file names and other messages it quotes.

    Args:
        message: what is wrong, and where.
        remedies: what to do, each by itself enough; the message ends with them.

    Attributes:
        problem: the message without remedies.
        remedies: the same; none where the message says what to do in words of its own.
    """

    def __init__(self, message: str = "", *remedies: Remedy) -> None:
        super().__init__(_in_one_line(sentence_with(message, remedies)))
        self.problem, self.remedies = message, remedies


class CaptureError(QtoolError):
    """The model cannot be captured as a graph."""


class PassError(QtoolError):
    """A graph rewrite broke its contract. Always a bug in qtool, never in the model."""


class DataError(QtoolError):
    """Calibration or evaluation data is unusable."""


class CalibrationError(QtoolError):
    """A calibration is empty, damaged, or of another model or plan."""


class OptionError(QtoolError):
    """An option or a goal is out of its range."""


class PlanError(QtoolError):
    """The model cannot be quantized for this target."""


class KernelError(QtoolError):
    """An integer kernel cannot represent its parameters or inputs."""


class ExportError(QtoolError):
    """The model cannot be written as ONNX."""


class VerificationError(QtoolError):
    """The exported file does not compute what the plan says."""


class EmulationError(QtoolError):
    """A processor cannot be emulated on this machine, or its emulation failed."""


class RanksError(QtoolError):
    """Processes of a group differ in model, options or versions, or one of them failed."""


class FileError(QtoolError):
    """A file cannot be read or written."""


class InstallError(QtoolError):
    """A package is not installed."""


def missing(path: str | os.PathLike[str], kind: type[QtoolError], what: str = "file") -> QtoolError:
    """Return the error that there is no such file.

    Args:
        path: as the user wrote it.
        kind: class of the error.
        what: that is missing.
    """
    return kind(f"{path}: no such {what}")


MALFORMED = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What reading raises where a document has other values than it should: JSON that anybody wrote."""

_INSIDE = (" ", "Traceback (most recent call last)")  # how lines of a traceback begin


def describe(error: BaseException) -> str:
    """Return the type and message of an error in one line.

    Of an error that quotes a traceback of another process it is the last line of that. What torch
    adds behind an empty line, where in a graph it was, is left out.
    """
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:
        lines = text.splitlines()
        inside = max(i for i, line in enumerate(lines) if line.startswith(_INSIDE) or i == 0)
        return _in_one_line("\n".join(lines[inside + 1 :])) or lines[-1].strip()
    if isinstance(error, SystemExit):
        return f"it ended the process (sys.exit({text}))"
    message = _in_one_line(text.partition("\n\n")[0])
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


@contextmanager
def errors_as(
    kind: type[QtoolError],
    what: str,
    *remedies: Remedy,
    of: type[BaseException] | tuple[type[BaseException], ...] = Exception,
) -> abc.Iterator[None]:
    """Raise an error of other code as one of qtool: what failed, and the error. qtool's own pass.

    Args:
        kind: class of the error.
        what: sentence in front of the error.
        remedies: what to do.
        of: classes of errors of other code.
    """
    try:
        yield
    except QtoolError:
        raise
    except of as error:
        raise kind(f"{what}: {describe(error)}", *remedies) from error


def _in_one_line(text: str) -> str:
    whole = re.sub(r"\s*[\r\n]+\s*", " ", text).strip()
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in whole)
