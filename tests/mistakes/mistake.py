"""A mistake of a user, and the check that qtool says what is wrong and what to do."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from qtool.cli import main

import qtool

Cases = dict[str, tuple[Callable[[], Any], str]]
"""Name of the mistake -> (what the user does, what it must say).

The text may leave out parts, as "...". Paths of the test's folder are written as they are typed.
"""


def check_refused(call: Callable[[], Any], expected: str, writes: bool = False) -> None:
    """Check that a call raises an error of qtool with this text, in one line, and writes nothing.

    Args:
        call: what the user does.
        expected: see `Cases`.
        writes: the call itself prepares files.
    """
    before = _files()
    with pytest.raises(qtool.QtoolError) as caught:
        call()
    _check(str(caught.value), expected)
    assert writes or _files() == before


def check_noted(call: Callable[[], Any], expected: str, logs: pytest.LogCaptureFixture) -> None:
    """Check that a call works, and that a note of its result or its log has this text."""
    with logs.at_level(logging.WARNING, "qtool"):
        result = call()
    notes = [*getattr(result, "notes", ()), *(record.getMessage() for record in logs.records)]
    assert any(_has(note, expected) for note in notes), notes


def check_command(arguments: str, expected: str) -> None:
    """Check that a command line exits with 2, says this in one sentence, and writes nothing."""
    before = _files()
    result = CliRunner().invoke(main, arguments.split(), prog_name="qtool")
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    _check(lines[0].removeprefix("Error: "), expected)
    assert _files() == before


def _check(message: str, expected: str) -> None:
    assert "\n" not in message
    assert _has(message, expected), message


def _has(message: str, expected: str) -> bool:
    pattern = ".*".join(re.escape(part.strip()) for part in expected.split("..."))
    return re.search(pattern, message) is not None


def _files() -> dict[str, bytes]:
    here = Path.cwd()
    return {str(p): p.read_bytes() for p in here.rglob("*") if p.is_file() and not p.is_symlink()}
