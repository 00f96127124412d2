"""A failure at each write, rename, folder, session and call of the user's code, one at a time: the
old file or the new one, nothing beside it, one sentence and the right code."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest

from tests.cli.conftest import DIGITS, Cli

FULL = OSError(28, "No space left on device")
FAULTS: dict[str, tuple[Any, str, BaseException]] = {
    "write": (Path, "write_bytes", FULL),
    "open": (Path, "open", FULL),
    "save": (onnx, "save_model", FULL),
    "sync": (os, "fsync", FULL),
    "rename": (Path, "replace", FULL),
    "mode": (Path, "chmod", FULL),
    "file": (tempfile, "mkstemp", FULL),
    "folder": (tempfile, "mkdtemp", FULL),
    "session": (ort, "InferenceSession", RuntimeError("the runtime is out of memory")),
}
CALIBRATE = ("calibrate", *DIGITS, "--data", "calib_data/digits", "-o", "out/digits.calib")
CONVERT = (
    *("convert", *DIGITS, "--calibration", "digits.calib", "-o", "out/digits.onnx"),
    *("--timing", "0"),
)
COMMANDS = {"calibrate": CALIBRATE, "convert": CONVERT}
MOST = 12  # calls of one kind that are made to fail


class Counted:
    """A function that fails at one of its calls; 0: at none."""

    def __init__(self, patch: pytest.MonkeyPatch, fault: str) -> None:
        self.owner, self.name, self.error = FAULTS[fault]
        self.calls, self.fails = 0, 0
        real: Callable[..., Any] = getattr(self.owner, self.name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.fails:
                raise self.error
            return real(*args, **kwargs)

        patch.setattr(self.owner, self.name, call)

    def at(self, call: int) -> None:
        self.calls, self.fails = 0, call


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
    command: str, fault: str, sample: Cli, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = sample.folder / "out"
    out.mkdir()
    target = out / COMMANDS[command][COMMANDS[command].index("-o") + 1].removeprefix("out/")
    sample(*COMMANDS[command])
    new = target.read_bytes()
    counted = Counted(monkeypatch, fault)
    sample(*COMMANDS[command])
    for call in range(1, min(counted.calls, MOST) + 1):
        target.write_bytes(b"old")
        counted.at(call)
        result = sample(*COMMANDS[command], code=2)
        said = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert len(said) == 1, (call, result.stderr)
        assert target.read_bytes() in (b"old", new)
        assert left(out) == {target.name}
        assert left(scratch) == set()
        counted.at(0)
