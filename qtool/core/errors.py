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
`-- FileError           a file cannot be read or written
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path


class QtoolError(Exception):
    """Base of all errors for the user. The CLI prints them without a traceback.

    The message is one printable line, whatever file names and other messages it quotes.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_in_one_line(message))


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


MALFORMED = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What reading raises where a document has other values than it should: JSON that anybody wrote."""

_STANDARD_LIBRARY = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib")))

_INSIDE = (" ", "Traceback (most recent call last)")  # how lines of a traceback begin


def describe(error: BaseException) -> str:
    """Return the type and message of an error in one line.

    Of an error that quotes a traceback of another process it is the last line of that.
    """
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:
        lines = text.splitlines()
        inside = max(i for i, line in enumerate(lines) if line.startswith(_INSIDE) or i == 0)
        return _in_one_line("\n".join(lines[inside + 1 :])) or lines[-1].strip()
    if isinstance(error, SystemExit):
        return f"it ended the process (sys.exit({text}))"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def user_place(error: BaseException) -> str:
    """Return the deepest line of the user's code that an error passed, in parentheses and with a
    space in front; "" if there is none."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        if frame.f_globals.get("__name__", "").partition(".")[0] == "qtool" or _is_library(file):
            continue
        shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
        place = f" ({shown}, line {line})"
    return place


def _is_library(file: Path) -> bool:
    """Return whether a file of code belongs to Python or to an installed package."""
    installed = "site-packages" in file.parts or str(file).startswith("<")
    return installed or any(file.is_relative_to(folder) for folder in _STANDARD_LIBRARY)


def _in_one_line(text: str) -> str:
    whole = re.sub(r"\s*[\r\n]+\s*", " ", text).strip()
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in whole)
