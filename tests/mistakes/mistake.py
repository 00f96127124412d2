"""A mistake of a user, and the check of the error that qtool raises for it."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from qtool.cli import main

import qtool
from qtool.core.remedies import Argument, Omission, Remedy
from tests.mistakes.remedies import changed

Mistake = str | Callable[[], Any]
"""A command line, or a call."""
Case = tuple[Mistake, str, str]
"""A mistake, the class of its error and the remedies (see `signature`), and a part of the sentence
that names what is wrong."""


def cases(table: list[Case]) -> Any:
    """Parametrize a test by a table, with the sentences as names of the cases."""
    return pytest.mark.parametrize(
        ("mistake", "kind", "names"),
        table,
        ids=[c[0] if isinstance(c[0], str) else c[2] for c in table],
    )


def check_refused(mistake: Mistake, kind: str, names: str, writes: bool = False) -> Exception:
    """Check the error of a mistake, and that nothing is written; return the error.

    With `writes`, the call itself makes files.
    """
    before = _files()
    error, sentence = _error_of(mistake)
    assert "\n" not in sentence
    assert (signature(error), names in sentence) == (kind, True), sentence
    assert writes or _files() == before
    return error


def check_remedies(command: str, error: Exception) -> None:
    """Check that a command, changed as its error says, works or has another error."""
    for remedy in getattr(error, "remedies", ()):
        if isinstance(remedy, Omission) or (isinstance(remedy, Argument) and remedy.value):
            other = _invoke(" ".join(changed(command.split(), remedy))).exception
            assert getattr(other, "exit_code", 2) == 2, other
            assert getattr(error, "problem", "") not in str(other), remedy


def check_noted(call: Callable[[], Any], names: str, logs: pytest.LogCaptureFixture) -> None:
    """Check that a call works, and that a note of its result or its log has a text."""
    with logs.at_level(logging.WARNING, "qtool"):
        result = call()
    notes = [*getattr(result, "notes", ()), *(record.getMessage() for record in logs.records)]
    assert any(names in note for note in notes), notes


def signature(error: Exception) -> str:
    """Return the class of an error, and its remedies: the argument of each, or its kind."""
    return " ".join([type(error).__name__, *map(_offer, getattr(error, "remedies", ()))])


def _offer(remedy: Remedy) -> str:
    if isinstance(remedy, Omission):
        return f"no {remedy.name}"
    return remedy.name if isinstance(remedy, Argument) else type(remedy).__name__


def _error_of(mistake: Mistake) -> tuple[Exception, str]:
    if not isinstance(mistake, str):
        with pytest.raises(qtool.QtoolError) as caught:
            mistake()
        return caught.value, str(caught.value)
    result = _invoke(mistake)
    assert isinstance(result.exception, click.ClickException), result.output
    assert result.exception.exit_code == 2
    assert "--json" in mistake or result.stdout == ""
    cause = result.exception.__cause__
    quoted = isinstance(cause, qtool.QtoolError) and str(cause) == result.exception.message
    return cause if quoted else result.exception, result.exception.format_message()


def _invoke(arguments: str) -> Any:
    words = arguments.split()
    return CliRunner().invoke(main, words, prog_name="qtool", standalone_mode=False)


def _files() -> dict[str, bytes]:
    here = Path.cwd()
    return {str(p): p.read_bytes() for p in here.rglob("*") if p.is_file() and not p.is_symlink()}
