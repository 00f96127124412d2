"""Applies remedies of errors to command lines, and the files that these name."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from qtool.cli import main

from qtool.core.argument_names import options_in_messages
from qtool.core.errors import QtoolError
from qtool.core.remedies import Argument, DataEdit, Omission, Remedy

M = "tests.mistakes.nets"
QUICKLY = {"quantize": "--accuracy fast --seconds 0", "evaluate": "--seconds 0.01"}
"""Command -> what makes it quick."""
VALUES = {
    "--data": f"{M}:images",
    "--shape": "3,8,8",
    "--target": "onnxruntime",
    "--eval": f"{M}:score",
    "--fix": "n=3",
    "--model": "float.onnx",
    "--other-model": "",
    "--noise-input": "",
    "--calibration": "float.calib",
}
"""Argument, or placeholder of a value -> what the user chooses."""
PLACEHOLDERS = {"FILE.onnx": "other.onnx", "n=VALUE": "n=3", "s=VALUE": "s=3.0"}
FLAGS = ("--external-data", "--noise-input")


REPLACED = {"--data": "--shape", "--eval": "--labels"}
"""Argument -> the one that goes when it is given."""


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[QtoolError]:
    """The errors with remedies that were made so far."""
    errors: list[QtoolError] = []
    make = QtoolError.__init__

    def record(self: QtoolError, message: str = "", *remedies: Remedy) -> None:
        make(self, message, *remedies)
        errors.extend([self] if remedies else [])

    monkeypatch.setattr(QtoolError, "__init__", record)
    return errors


def key_of(remedy: Remedy) -> str:
    return remedy.code if isinstance(remedy, DataEdit) else getattr(remedy, "name", "")


def run(words: list[str]) -> tuple[int, str]:
    """Return the exit code and the text of the errors of a command, made quick."""
    words = [*words, *QUICKLY.get(words[0], "").split()]
    result = CliRunner().invoke(main, words, prog_name="qtool")
    assert result.exit_code in (0, 1, 2, 3), result.output
    return result.exit_code, result.stderr


def changed(words: list[str], remedy: Argument | Omission) -> list[str]:
    """Return a command line with an argument replaced, added or left out."""
    words = list(words)
    for name in (remedy.name, REPLACED.get(remedy.name, "")):
        if name in words:
            at = words.index(name)
            del words[at : at + (1 if name in FLAGS else 2)]
    if isinstance(remedy, Omission):
        return words
    with options_in_messages():
        spelled = str(Argument(remedy.name, remedy.value, "{}"))
    if remedy.value is None:
        spelled = f"{spelled} {VALUES[remedy.name]}"
    for placeholder, value in PLACEHOLDERS.items():
        spelled = spelled.replace(placeholder, value)
    return [*words, *shlex.split(spelled)]


Edit = tuple[Callable[[], object], Callable[[], object]]
"""A call that is refused with a remedy, and the call after it."""


def check_edit(kind: type[Remedy], text: str, edit: Edit) -> None:
    """Check that a call offers a remedy, whose varying parts are {}, and works after it."""
    refused, edited = edit
    with pytest.raises(QtoolError) as caught:
        refused()
    form = re.escape(text).replace(re.escape("{}"), ".+")
    texts = [str(r) for r in caught.value.remedies if isinstance(r, kind)]
    assert any(re.fullmatch(form, each) for each in texts), caught.value
    edited()


def rows(table: str) -> list[list[str]]:
    """Return the rows of a table of this folder."""
    lines = Path(__file__).with_name(table).read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.split(" | ")]
        for line in lines
        if line and not line.startswith("#")
    ]


def check_offer(error: QtoolError, sites: set[str]) -> None:
    names = {key_of(remedy) for remedy in error.remedies}
    assert {site.partition(" ")[2] for site in sites} <= names, error
