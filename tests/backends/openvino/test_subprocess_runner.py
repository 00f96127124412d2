"""A runtime in a process of its own: answers, refusals, crashes, interruptions, forks."""

import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qtool.backends.subprocess_runner import SubprocessRunner
from qtool.core.errors import VerificationError

SERVER = """
import os, signal, time
import numpy as np
from qtool.core.errors import VerificationError
from qtool.backends import subprocess_runner

def double(path, arrays):
    print("what a runtime prints")
    return {"path": path, "pid": os.getpid()}, [2 * a for a in arrays]

def refuse(path, arrays):
    raise VerificationError(f"{path}: no")

def crash(path, arrays):
    os.kill(os.getpid(), signal.SIGSEGV)

def leave(path, arrays):
    os._exit(3)

def wait(path, arrays):
    time.sleep(60)

def stumble(path, arrays):
    return {}["layerType"]

def serve():
    subprocess_runner.serve({f.__name__: f for f in (double, refuse, crash, leave, wait, stumble)})
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SubprocessRunner]:
    (tmp_path / "made_up_runtime.py").write_text(textwrap.dedent(SERVER))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    runner = SubprocessRunner("made_up_runtime", "Made Up")
    yield runner
    runner.close()


def test_arrays_go_there_and_back(runtime: SubprocessRunner) -> None:
    arrays = [
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.float32(1.5).reshape(()),
        np.zeros((0, 4), np.uint8),
        *(np.full(i, i, np.float32) for i in range(12)),  # more than ten: their order
        np.ones((1 << 20,), np.float32),  # more than a pipe holds
    ]
    words, found = runtime.call("double", "\u00e4 b.onnx", arrays)
    assert words["path"] == str(Path("\u00e4 b.onnx").absolute())
    assert words["pid"] != os.getpid()
    for given, got in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(2 * given, got, strict=True)


def test_one_process_answers_all(runtime: SubprocessRunner) -> None:
    first, second = (runtime.call("double", "x")[0]["pid"] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("what", "why"),
    [("refuse", r"^a: no$"), ("stumble", r"does not run: KeyError: 'layerType'$")],
)
def test_neither_a_refusal_nor_a_mistake_is_a_crash(
    what: str, why: str, runtime: SubprocessRunner
) -> None:
    before = runtime.call("double", "x")[0]["pid"]
    with pytest.raises(VerificationError, match=why):
        runtime.call(what, "a")
    assert runtime.call("double", "x")[0]["pid"] == before


@pytest.mark.parametrize(("what", "why"), [("crash", "SIGSEGV"), ("leave", "exit code 3")])
def test_a_crash_is_a_refusal_and_the_next_question_is_answered(
    runtime: SubprocessRunner, what: str, why: str
) -> None:
    with pytest.raises(VerificationError, match=rf"^Made Up crashes on the model \({why}\)"):
        runtime.call(what, "x")
    assert runtime.call("double", "x")[0]["path"] == str(Path("x").absolute())


def test_an_interrupted_question_is_not_answered_later(runtime: SubprocessRunner) -> None:
    before = runtime.call("double", "x")[0]["pid"]

    def interrupt() -> None:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    old = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            runtime.call("wait", "x")
    finally:
        signal.signal(signal.SIGINT, old)
    thread.join()
    words, _ = runtime.call("double", "y")
    assert words["path"] == str(Path("y").absolute())
    assert words["pid"] != before


def test_a_forked_process_asks_its_own(runtime: SubprocessRunner) -> None:
    before = runtime.call("double", "x")[0]["pid"]
    child = os.fork()
    if child == 0:
        try:
            other = runtime.call("double", "x")[0]["pid"]
            os._exit(0 if other != before else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert runtime.call("double", "x")[0]["pid"] == before


def test_threads_get_their_own_answers(runtime: SubprocessRunner) -> None:
    found: dict[int, float] = {}

    def ask(i: int) -> None:
        found[i] = float(runtime.call("double", "x", [np.float32(i).reshape(1)])[1][0][0])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: 2.0 * i for i in range(8)}
