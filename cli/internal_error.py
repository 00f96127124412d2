"""Errors that are bugs of qtool: their own exit code, and what a report of the bug needs."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import traceback
from pathlib import Path

import click

DEBUG = "QTOOL_DEBUG"
"""Environment variable: if set, the traceback is also printed."""

_PACKAGES = ("qtool", "torch", "onnx", "onnxruntime", "onnxscript", "onnx-ir", "numpy")


class InternalError(click.ClickException):
    """An error that no user can correct: exit code 70 (EX_SOFTWARE of sysexits.h)."""

    exit_code = 70


def internal_error(error: BaseException) -> InternalError:
    """Return the error to show for an unexpected exception.

    Its details (command, versions, traceback) are written to a file in the folder for temporary
    files; with QTOOL_DEBUG they are also printed.
    """
    from qtool.core.errors import QtoolError, describe

    details = _details(error)
    if os.environ.get(DEBUG):
        click.echo(details, err=True)
    where = _write(details)
    attach = f"and attach {where}" if where else f"with what {DEBUG}=1 prints"
    one_line = QtoolError(
        f"internal error, a bug in qtool: {describe(error)}; please report it {attach} (command, "
        "versions and traceback, no data)"
    )
    return InternalError(str(one_line))


def _details(error: BaseException) -> str:
    from qtool.core.versions import version_of

    versions = ", ".join(f"{name} {version_of(name) or '-'}" for name in _PACKAGES)
    lines = traceback.format_exception(error)
    system = f"Python {platform.python_version()}, {platform.platform()}"
    return f"command: {shlex.join(sys.argv)}\nversions: {versions}; {system}\n\n{''.join(lines)}"


def _write(details: str) -> Path | None:
    """Write the details to a new file; None if that is impossible."""
    try:
        handle, name = tempfile.mkstemp(prefix="qtool-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(details)
    except OSError:
        return None
    return Path(name)
