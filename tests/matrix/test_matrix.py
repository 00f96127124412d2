"""Commands with kinds of models in modes: each pair works, or a sentence names what to use."""

import re
import warnings
from functools import cache, partial
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from qtool.cli import main

from tests.matrix.cells import BLOCKWISE, COMMANDS, MODES, NO_FILE, arguments, is_covered, refusal
from tests.matrix.kinds import KINDS, Kind

pytest.importorskip("transformers")

OF_PYTHON = {"cnn", "detector", "lstm", "tflite"}
"""Kinds without a file of weights that is read block by block."""

_HIDDEN = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
"""Warnings that Python hides from users."""

OWN = re.compile(
    r"(Error|Usage|Try|warning|note): |Try '|goal missed|.*: \d+\.\d s( \(\d+ steps\))?$"
    r"|.*(after \d|\d s so far)"
)
"""A line of qtool's on standard error: a sentence of a kind, or the time of a stage."""

REMEDY = re.compile(r"qtool \w+|--[a-z]|\w+\(.*\)")
"""A command, an option or a call."""


class Workshop:
    """Runs commands in a folder for each kind, whose files are made once in each mode."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kind = cache(self._make_kind)
        self.quantized = cache(partial(self._run, "quantize"))
        self.calibrated = cache(partial(self._run, "calibrate"))

    def _make_kind(self, name: str) -> Kind:
        self.of(name).mkdir()
        return KINDS[name](self.of(name))

    def of(self, name: str) -> Path:
        return self.folder / name

    def run(self, command: str, name: str, mode: str) -> Result:
        if command in NO_FILE or command == "quantize":
            result = self.quantized(name, mode)
            if command == "quantize" or result.exit_code:
                return result
        if command == "calibrate":
            return self.calibrated(name, mode)
        if command == "convert":
            for needed in {mode, "static"}:
                self.calibrated(name, needed)
        return self._run(command, name, mode)

    def _run(self, command: str, name: str, mode: str) -> Result:
        kind, folder = self.kind(name), self.of(name)
        line = arguments(command, kind, mode, folder / f"{mode}{kind.suffix}", folder)
        with warnings.catch_warnings():  # printed, as for users
            warnings.simplefilter("default")
            for category in _HIDDEN:
                warnings.simplefilter("ignore", category)
            return CliRunner().invoke(main, line)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("matrix"))


CELLS = [
    (command, kind, mode)
    for kind, mode, command in product(KINDS, MODES, COMMANDS)
    if is_covered(command, kind, mode) and not (command == BLOCKWISE and kind in OF_PYTHON)
]


def test_each_command_works_in_each_mode() -> None:
    pairs = {(command, mode) for command, kind, mode in CELLS if not refusal(command, kind, mode)}
    assert set(product(COMMANDS, MODES)) - pairs == {
        ("calibrate", "weight-only-int4"),
        ("calibrate", "weight-only-int2"),
    }


@pytest.mark.parametrize(  # the cells of one kind run in one process, which makes its files once
    ("command", "kind", "mode"),
    [
        pytest.param(*cell, id="-".join(cell), marks=pytest.mark.xdist_group(cell[1]))
        for cell in CELLS
    ],
)
def test_a_cell(
    workshop: Workshop, command: str, kind: str, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    workshop.kind(kind)
    capfd.readouterr()  # of libraries that made the files
    result = workshop.run(command, kind, mode)
    lines = filter(str.strip, result.stderr.splitlines())
    foreign = [line for line in lines if not OWN.match(line)]
    assert not foreign, foreign
    assert not capfd.readouterr().err, "a library in C++ prints"
    expected = refusal(command, kind, mode)
    assert result.exit_code == (0 if expected is None else 2), (result.output, result.exception)
    assert result.output.strip()
    if expected is not None:
        sentence = result.output.strip().splitlines()[-1]
        assert re.search(expected, sentence), sentence
        assert REMEDY.search(sentence), sentence
