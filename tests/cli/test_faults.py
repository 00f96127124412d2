"""A failure at each write, rename, folder, session and call of the user's code, one at a time: the
old file or the new one, nothing beside it, one sentence and the right code.

The tests take some of these points; with QTOOL_FAULTS=all in the environment they take all, and
pytest --junitxml says how many.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from examples.digits import network
from tests.cli import models
from tests.cli.conftest import DIGITS, Cli

FULL = OSError(28, "No space left on device")
OWN = RuntimeError("the user's own error")
FAULTS: dict[str, tuple[Any, str, BaseException]] = {
    "write": (Path, "write_bytes", FULL),
    "text": (Path, "write_text", FULL),
    "open": (Path, "open", FULL),
    "save": (onnx, "save_model", FULL),
    "sync": (os, "fsync", FULL),
    "rename": (Path, "replace", FULL),
    "mode": (Path, "chmod", FULL),
    "file": (tempfile, "mkstemp", FULL),
    "folder": (tempfile, "mkdtemp", FULL),
    "session": (ort, "InferenceSession", RuntimeError("the runtime is out of memory")),
    "memory": (ort, "InferenceSession", MemoryError()),
    "read": (np, "load", OSError(5, "Input/output error")),
    "factory": (network, "digits_net", OWN),
    "forward": (network.DigitsNet, "forward", OWN),
    "metric": (models, "first_class", OWN),
}
CALIBRATE = (
    *("calibrate", *DIGITS, "--data", "calib_data/digits", "-o", "out/digits.calib"),
    *("--samples", "8", "--accuracy", "fast"),
)
CONVERT = (
    *("convert", *DIGITS, "--calibration", "digits.calib", "-o", "out/digits.onnx"),
    *("--seconds", "0", "--accuracy", "fast"),
)
LABELLED = ("--model", *DIGITS, "--data", "examples/digits/eval.npz", "--labels", "labels")
BRIEF = ("--seconds", "0.02", "--batch-sizes", "1", "--layer-samples", "16")
METRIC = ("--model", *DIGITS, "--data", "calib_data/digits", "--eval")
REPORT = (
    *("report", "digits.int8.onnx", *METRIC, "tests.cli.models:first_class"),
    *(*BRIEF, "-o", "out/report"),
)
EVALUATE = ("evaluate", "digits.int8.onnx", *LABELLED, "--seconds", "0.02")
COMMANDS = {"calibrate": CALIBRATE, "convert": CONVERT}
LONGER = {"report": REPORT, "evaluate": EVALUATE}
ALL = os.environ.get("QTOOL_FAULTS") == "all"
FEW = 10**6 if ALL else 1  # calls of one kind that fail, of the commands that take longer
SHORT = (*FAULTS,) if ALL else ("text", "rename", "session", "forward", "metric")  # the same


KNOWN: dict[str, tuple[bytes, dict[str, int]]] = {}
"""Of each command: the file that it makes, and how often each function is called for it."""


class Counted:
    """A function that fails at one of its calls; 0: at none."""

    def __init__(self, patch: pytest.MonkeyPatch, fault: str) -> None:
        self.owner, self.name, self.error = FAULTS[fault]
        self.calls, self.fails = 0, 0
        real: Callable[..., Any] = getattr(self.owner, self.name)

        @wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.fails:
                raise self.error
            return real(*args, **kwargs)

        patch.setattr(self.owner, self.name, call)

    def at(self, call: int) -> None:
        self.calls, self.fails = 0, call


def calls_of(run: Callable[[], Any]) -> dict[str, int]:
    """How often each function that can fail is called in a run."""
    with pytest.MonkeyPatch.context() as patch:
        counted = {fault: Counted(patch, fault) for fault in FAULTS}
        run()
    return {fault: each.calls for fault, each in counted.items()}


def left(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_old_file_or_the_new_one(
    command: str,
    fault: str,
    sample: Cli,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """The first and the last call, or all."""
    out = sample.folder / "out"
    out.mkdir()
    target = out / COMMANDS[command][COMMANDS[command].index("-o") + 1].removeprefix("out/")
    if command not in KNOWN:
        calls = calls_of(lambda: sample(*COMMANDS[command]))
        KNOWN[command] = target.read_bytes(), calls
    new, calls = KNOWN[command]
    counted = Counted(monkeypatch, fault)
    last = calls[fault]
    points = range(1, last + 1) if ALL else sorted({min(last, 1), last} - {0})
    for call in points:
        target.write_bytes(b"old")
        counted.at(call)
        result = sample(*COMMANDS[command], code=(0, 2))  # 0: it can do without
        errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == (result.exit_code == 2), (call, result.stderr)
        assert target.read_bytes() in ((b"old", new) if errors else (new,))
        assert left(out) == {target.name}
        assert left(scratch) == set()
        counted.at(0)
    record_property("points", len(points))


def bytes_of(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return {str(p.relative_to(path.parent)): p.read_bytes() for p in files}


@pytest.mark.parametrize("command", LONGER)
def test_the_longer_commands(
    command: str,
    sample: Cli,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """As above, each kind of fault at its last calls; a report may be gone on with."""
    arguments, out = LONGER[command], sample.folder / "out"
    out.mkdir()
    target = out / Path(arguments[arguments.index("-o") + 1]).name if "-o" in arguments else out
    known = calls_of(lambda: sample(*arguments))
    before = bytes_of(target)
    points = 0
    for fault, calls in ((fault, known[fault]) for fault in SHORT):
        with pytest.MonkeyPatch.context() as patch:
            counted = Counted(patch, fault)
            for call in range(max(1, calls - FEW + 1), calls + 1):
                counted.at(call)
                result = sample(*arguments, code=(0, 2))  # 0: it can do without
                counted.at(0)
                points += 1
                errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
                assert len(errors) == (result.exit_code == 2), (fault, call, result.stderr)
                after = bytes_of(target)
                assert after.keys() == before.keys(), (fault, call)
                placed = fault == "sync"  # the last ones are said when the new report is in place
                assert after == before or result.exit_code == 0 or placed, (fault, call)
                before = after  # of a report that was made all the same: its times differ
                assert left(scratch) == set(), (fault, call)
                assert {p.name for p in out.iterdir()} <= {target.name}
    record_property("points", points)
    assert points >= (8 if ALL else 3)
