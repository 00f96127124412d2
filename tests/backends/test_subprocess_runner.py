"""Calls in a subprocess: the file that the caller names, and an end in every case."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qtool.backends import subprocess_runner
from qtool.backends.pipe_process import Message
from qtool.backends.runtime import Arrays
from qtool.backends.subprocess_runner import SubprocessRunner, time_limit
from qtool.core.errors import VerificationError


def serve() -> None:
    """Answer calls in the subprocess."""
    subprocess_runner.serve({"read": _read, "sleep": _sleep, "refuse": _refuse})


def _read(path: str, _: Arrays) -> tuple[Message, Arrays]:
    return {"text": Path(path).read_text()}, ()


def _sleep(_: str, arrays: Arrays) -> tuple[Message, Arrays]:
    with time_limit(0.2 if len(arrays) else 60):
        if len(arrays):
            time.sleep(60)
    return {}, ()


def _refuse(path: str, _: Arrays) -> tuple[Message, Arrays]:
    raise VerificationError(f"{path}: refused")


@pytest.fixture
def runner() -> Iterator[SubprocessRunner]:
    made = SubprocessRunner(__name__, "A runtime")
    yield made
    made.close()


def test_a_relative_name_is_in_the_folder_of_the_caller(
    runner: SubprocessRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        assert runner.call("read", "model")[0]["text"] == name
    with pytest.raises(VerificationError, match=r"^model: refused$"):
        runner.call("refuse", "model")


@pytest.mark.skipif(not subprocess_runner._HAS_TIMER, reason="no timers on this system")
def test_a_call_that_does_not_end_is_ended(runner: SubprocessRunner) -> None:
    runner.call("sleep", "model")
    with pytest.raises(VerificationError, match=r"A runtime does not finish .* may be damaged"):
        runner.call("sleep", "model", [np.zeros(1)])
    with pytest.raises(VerificationError, match="does not finish"):
        runner.call("sleep", "model")
    runner.call("sleep", "another")  # in a new process, and the limit before is off
