"""Exit codes, signals, closed pipes and full disks: one sentence, and no partial files."""

import io
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import click
import pytest
from qtool.cli import main
from qtool.cli.shutdown import clean_shutdown

import qtool
from qtool.core.shield import defer_signals
from tests.cli.conftest import ROOT, Cli

M = "tests.cli.models:"
UP = f"{M}transposed"


def started(*arguments: str, folder: Path, **options: object) -> subprocess.Popen[str]:
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "qtool", *arguments],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_a_signal_before_the_command_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(main), "parse_args", interrupted)
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 130


@pytest.mark.parametrize(
    "name", ["SIGTERM", *(pytest.param(n, marks=pytest.mark.matrix) for n in ("SIGINT", "SIGHUP"))]
)
def test_a_signal_ends_it_in_order(name: str, tmp_path: Path) -> None:
    number, out = signal.Signals[name], tmp_path / "out.calib"
    out.write_text("old")
    process = started(
        "calibrate", UP, "--data", f"{M}endless", "-o", str(out),
        folder=tmp_path, stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup and & ignore some
    )  # fmt: skip
    try:
        for line in process.stderr:
            if line == "the data is being read\n":
                break
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert errors.splitlines()[-1] == f"ended by {name}"
    assert out.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    assert not list((tmp_path / "scratch").glob(".qtool*"))


def test_nobody_reads_the_output(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    process = started("inspect", "--help", folder=tmp_path, stdout=write)
    _, errors = process.communicate()
    os.close(write)
    assert process.returncode == 141
    assert "Error" not in errors


@pytest.mark.matrix
def test_closed_streams_lead_nowhere(tmp_path: Path) -> None:
    target = tmp_path / "a.calib"
    words = ("calibrate", UP, "--data", f"{M}images", "-o", str(target))
    command = shlex.join([sys.executable, "-m", "qtool", *words])
    done = subprocess.run(["/bin/sh", "-c", f"{command} <&- >&- 2>&-"], cwd=ROOT, check=False)
    assert done.returncode == 0
    assert qtool.Calibration.load(target).samples == 24


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_the_output_is_full(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = started(
            *("calibrate", UP, "--data", f"{M}images", "-o", str(tmp_path / "a.calib")),
            folder=tmp_path,
            stdout=full,
        )
        _, errors = process.communicate()
    assert process.returncode == 2
    assert errors.splitlines()[-1] == "Error: operating system error: No space left on device"


@pytest.mark.parametrize(
    "command", [pytest.param("calibrate", marks=pytest.mark.matrix), "quantize"]
)
def test_the_disk_is_full(command: str, tmp_path: Path) -> None:
    out = tmp_path / ("out.calib" if command == "calibrate" else "out.onnx")
    out.write_text("old")
    process = started(
        *(command, UP, "--data", f"{M}images", "-o", str(out)),
        folder=tmp_path,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    _, errors = process.communicate()
    assert process.returncode == 2
    assert errors.splitlines()[-1] == f"Error: cannot write {out}: File too large"
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == [out.name, "scratch"]


LEAVING = {
    "factory": (f"{M}leaves", f"{M}images", "calling tests.cli.models:leaves() failed: it ended"),
    "forward": (f"{M}leaving", f"{M}images", "it ended the process (sys.exit(3))"),
    "data": (UP, f"{M}leaves", "calling tests.cli.models:leaves() failed: it ended the process"),
    "generator": (UP, f"{M}leaves_later", "reading batch 1 failed: it ended the process"),
    "no error": (f"{M}goes_away", f"{M}images", "outside qtool ended the command: GeneratorExit"),
    "sys.exit": (UP, "sys:exit", "calling sys:exit() failed: it ended the process"),
}


@pytest.mark.parametrize(("model", "data", "sentence"), LEAVING.values(), ids=LEAVING)
def test_the_users_code_ends_the_process(model: str, data: str, sentence: str, cli: Cli) -> None:
    assert sentence in cli.refuses("quantize", model, "--data", data, "-o", "out.onnx")


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("quantize", UP, "--data", f"{M}empty", "-o", "o.onnx"), "DataError", "data is empty"),
        (("quantize", UP, "--data", f"{M}empty"), "MissingParameter", "Missing"),
        (("quantize", UP, "--fast"), "NoSuchOption", "No such option"),
        (("inspect", "no.onnx"), "FileError", "no.onnx"),
    ],
)
def test_errors_as_json(arguments: tuple[str, ...], kind: str, message: str, cli: Cli) -> None:
    result = cli(*arguments, "--json", code=2)
    printed = json.loads(result.stdout)["error"]
    assert (printed["type"], printed["exit_code"]) == (kind, 2)
    assert message in printed["message"]


def test_another_ones_lines_are_one_sentence(cli: Cli) -> None:
    sentence = cli.refuses(
        "quantize", f"{M}tells_at_length", "--data", f"{M}images", "-o", "o.onnx"
    )
    head, _, place = sentence.partition(" (")
    assert head == "calling tests.cli.models:tells_at_length() failed: RuntimeError: one two three"
    # Another test's folder comes before it where that test imported the module.
    assert re.search(r"tests/cli/models\.py, line \d+\)", place)


def ends(body: Callable[[], None]) -> tuple[BaseException, str]:
    """What comes out of a command that does so."""
    stderr = io.StringIO()
    with redirect_stderr(stderr), pytest.raises(BaseException) as caught, clean_shutdown():  # noqa: PT011
        body()
    return caught.value, stderr.getvalue()


def hurt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.sigtimedwait([], 0.01)  # a handler runs between two steps of Python


def test_a_signal_that_others_make_an_error_of() -> None:
    def body() -> None:
        try:
            hurt()
        except KeyboardInterrupt:
            raise RuntimeError("the stack is empty")  # noqa: B904  # as torch does

    error, stderr = ends(body)
    assert isinstance(error, SystemExit)
    assert error.code == 143
    assert stderr.splitlines()[-1] == "ended by SIGTERM"


@pytest.mark.parametrize(("signals", "expected"), [(1, ["traced"]), (2, [])])
def test_a_signal_waits_while_torch_traces_and_a_second_does_not(
    signals: int, expected: list[str]
) -> None:
    done = []

    def body() -> None:
        with defer_signals():
            for _ in range(signals):
                hurt()
            done.append("traced")
        done.append("more")

    error, _ = ends(body)
    assert isinstance(error, SystemExit)
    assert error.code == 143
    assert done == expected


def test_an_error_of_its_own_stays_one() -> None:
    def body() -> None:
        raise qtool.DataError("no data")

    error, _ = ends(body)
    assert isinstance(error, click.ClickException)
    assert error.exit_code == 2
