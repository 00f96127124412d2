"""Programs in a process group of their own: what they say, and that none is left."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qtool.core.errors import EmulationError
from qtool.plugins.emulators.processes import TimeLimitError, run_command

# starts a child of its own, writes both numbers, and waits
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def alive(number: int) -> bool:
    """Whether a process still runs; one that only waits to be collected does not."""
    stat = Path(f"/proc/{number}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(numbers: list[int]) -> bool:
    for _ in range(600):
        if not any(map(alive, numbers)):
            return True
        time.sleep(0.05)
    return False


def test_what_it_prints_is_returned() -> None:
    assert run_command(python("print('a'); print('b')"), "it", 60.0) == "a\nb"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; print('one\\nlast line', file=sys.stderr); sys.exit(3)", "last line (exit"),
        ("raise ValueError('wrong')", "ValueError: wrong (exit code 1)"),
        ("import os; os.kill(os.getpid(), 11)", "it fails: SIGSEGV"),
        ("print('on the output'); raise SystemExit(2)", "on the output (exit code 2)"),
        (
            "raise SystemExit('why\\nqemu: warning: TCG doesn\\'t support x')",
            "it fails: why (exit code 1)",
        ),
    ],
)
def test_a_failure_is_one_sentence(code: str, says: str) -> None:
    with pytest.raises(EmulationError) as caught:
        run_command(python(code), "it", 60.0)
    assert says in str(caught.value)


def test_a_long_line_is_cut() -> None:
    with pytest.raises(EmulationError) as caught:
        run_command(python("raise SystemExit('x' * 5000)"), "it", 60.0)
    assert len(str(caught.value)) < 500


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(EmulationError, match="it does not start"):
        run_command(["/no/such/program"], "it", 60.0)


def test_a_time_limit_ends_the_whole_group(tmp_path: Path) -> None:
    printed = tmp_path / "numbers"
    with pytest.raises(TimeLimitError, match="it was stopped after"):
        run_command(python(FAMILY, printed), "it", 1.5)
    assert gone([int(n) for n in printed.read_text().split()])


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process that a Ctrl-C interrupts; a shell ignores it for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_ends_the_whole_group(tmp_path: Path) -> None:
    printed = tmp_path / "numbers"

    def interrupt() -> None:
        while not printed.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_command(python(FAMILY, printed), "it", 60.0)
    assert gone([int(n) for n in printed.read_text().split()])


def test_one_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    printed = tmp_path / "number"
    deaf = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({str(printed)!r}, "w").write(str(os.getpid()))
time.sleep(600)
"""
    with pytest.raises(TimeLimitError):
        run_command(python(deaf), "it", 1.0)
    assert gone([int(printed.read_text())])


def test_a_job_ends_when_this_process_is_killed(tmp_path: Path) -> None:
    """Its standard input is closed then, whatever it is at."""
    from qtool.plugins.emulators import jobs

    script = Path(jobs.__file__).parent / "run_onnx.py"
    fifo = tmp_path / "job.json"
    os.mkfifo(fifo)  # it waits for its job for ever
    process = subprocess.Popen([sys.executable, str(script), str(fifo)], stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
