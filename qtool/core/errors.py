"""The exceptions a person can meet. Every message says what is wrong, where, and what to do.

QtoolError
|-- CaptureError        the model cannot be captured as a graph
|-- PassError           a graph rewrite broke its contract (a bug in qtool)
|-- DataError           calibration or evaluation data is unusable
|-- CalibrationError    a calibration is empty, foreign, damaged or does not fit the model
|-- OptionError         an option or a goal is out of its range
|-- PlanError           the model cannot be quantized for this target
|-- KernelError         an integer kernel cannot represent what it was asked to compute
|-- ExportError         the model cannot be written as ONNX
|-- VerificationError   the exported file does not do what the plan says
|-- EmulationError      a processor cannot be emulated here, or its emulation failed
|-- RanksError          processes that work together do not fit, or one of them failed
`-- FileError           a file cannot be read or written
"""

from __future__ import annotations

import re


class QtoolError(Exception):
    """Root of every error that is the user's to see. The CLI prints it without a traceback.

    The message is one line, whatever another's message or a file's name in it holds.
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
    """A calibration is empty, foreign, damaged or does not fit the model."""


class OptionError(QtoolError):
    """An option or a goal is out of its range."""


class PlanError(QtoolError):
    """The model cannot be quantized for this target."""


class KernelError(QtoolError):
    """An integer kernel cannot represent what it was asked to compute."""


class ExportError(QtoolError):
    """The model cannot be written as ONNX."""


class VerificationError(QtoolError):
    """The exported file does not do what the plan says."""


class EmulationError(QtoolError):
    """A processor cannot be emulated on this machine, or its emulation failed."""


class RanksError(QtoolError):
    """Processes that work together do not fit each other, or one of them failed."""


class FileError(QtoolError):
    """A file cannot be read or written."""


_INSIDE = (" ", "Traceback (most recent call last)")  # how lines of a traceback begin


def describe(error: BaseException) -> str:
    """What somebody else's error says, in one line: its type and message, or the last line of a
    traceback that it carries from another process."""
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:
        lines = text.splitlines()
        inside = max(i for i, line in enumerate(lines) if line.startswith(_INSIDE) or i == 0)
        return _in_one_line("\n".join(lines[inside + 1 :])) or lines[-1].strip()
    if isinstance(error, SystemExit):
        return f"it ended the process (sys.exit({text}))"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _in_one_line(text: str) -> str:
    whole = re.sub(r"\s*[\r\n]+\s*", " ", text).strip()
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in whole)
