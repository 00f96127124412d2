"""Commands under torchrun: the bytes, the words and the exit code of one process."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import DIGITS, ROOT, Cli
from tests.distributed.processes import Command

M = "tests.cli.models:"
DATA = ("--data", "calib_data/digits")
FAST = ("--accuracy", "fast")  # as `sample` is made


def started(cli: Cli, rank: int, *arguments: str, port: int) -> Command:
    """One rank of two, with the environment that torchrun gives it."""
    given = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    scratch = cli.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    environment = {"TMPDIR": str(scratch)} | {k: str(v) for k, v in given.items()}
    return Command(arguments, environment, ROOT, cli.folder / f"said-by-{rank}")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ended(cli: Cli, *arguments: str) -> list[tuple[int, str, str]]:
    """(exit code, output, errors) of two ranks."""
    port = free_port()
    ranks = [started(cli, r, *arguments, port=port) for r in (0, 1)]
    found = [r.ended() for r in ranks]
    assert not list((cli.folder / "scratch").glob(".qtool*"))
    assert not list(cli.folder.glob(".*"))
    return found


@pytest.mark.matrix  # the tests below have the environment that torchrun makes
def test_torchrun_calibrates_to_the_same_bytes(sample: Cli) -> None:
    file = sample.folder / "two.calib"
    command = ("-m", "qtool", "calibrate")
    torchrun = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
    )
    run = subprocess.run(
        [*torchrun, str(free_port()), *command, *DIGITS, *DATA, *FAST, "-o", str(file), "--json"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["samples"] == 200
    assert file.read_bytes() == (sample.folder / "digits.calib").read_bytes()


def test_a_command_with_nothing_to_share_is_rank_0s(sample: Cli) -> None:
    file = str(sample.folder / "digits.int8.onnx")
    (code, output, errors), other = ended(sample, "inspect", file, "-q")
    assert (code, output, errors, other) == (0, "", "", (0, "", ""))
    (code, output, _), other = ended(sample, "inspect", file)
    assert (code, other) == (0, (0, "", ""))
    assert output == sample("inspect", file).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (
            ("calibrate", *DIGITS, "--data", "nowhere", "-o", "OUT"),
            2,
            " of 2, in its share of every 2nd batch: nowhere: no such file or folder",
        ),
        (("calibrate", "--nonsense"), 2, "Error: No such option"),
        (
            ("calibrate", f"{M}seeded", "--data", f"{M}not_a_number", "-o", "OUT"),
            2,
            "Error: rank 1 of 2, in its share of every 2nd batch: batch 1, input 0 holds NaN",
        ),
        (
            ("calibrate", f"{M}transposed", "--data", f"{M}images", "-o", "OUT"),
            2,
            "Error: rank 1 of 2 has a different model than rank 0 (",
        ),
    ],
)
def test_one_rank_says_what_is_wrong(
    cli: Cli, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    out = cli.folder / "out.calib"
    out.write_text("old")
    found = ended(cli, *(str(out) if a == "OUT" else a for a in arguments))
    assert [c for c, _, _ in found] == [code, code]
    errors = "".join(e for _, _, e in found)
    assert errors.count("Error: ") == 1
    assert sentence in errors
    assert "".join(o for _, o, _ in found) == ""
    assert out.read_text() == "old"


def test_help_and_a_missed_goal(sample: Cli) -> None:
    (code, output, errors), other = ended(sample, "quantize", "--help")
    assert (code, errors, other) == (0, "", (0, "", ""))
    assert output.startswith("Usage: ")
    arguments = (*DIGITS, *DATA, "-o", str(sample.folder / "a.onnx"), "--seconds", "0")
    (code, _, errors), other = ended(sample, "quantize", *arguments, "--min-sqnr", "500")
    assert (code, other) == (1, (1, "", ""))
    assert errors.endswith("dB, below --min-sqnr 500; the file was written\n")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed(victim: int, cli: Cli) -> None:
    out, port = cli.folder / "out.calib", free_port()
    out.write_text("old")
    arguments = ("calibrate", f"{M}seeded", "--data", f"{M}endless_with_a_sign")
    arguments = (*arguments, "-o", str(out))
    ranks = [started(cli, r, *arguments, port=port) for r in (0, 1)]
    signs = cli.folder / "scratch"
    while len(list(signs.glob("reading-*"))) < 2:
        assert ranks[0].code is ranks[1].code is None
        time.sleep(0.05)
    ranks[victim].kill()
    code, _, errors = ranks[1 - victim].ended()
    assert code == 2
    gone = rf"rank {victim} of 2 is gone: no sign of life for 3 s|the group's store is gone"
    assert re.search(gone, errors)
    assert errors.count("Error: ") == 1
    assert out.read_text() == "old"
    assert not list(cli.folder.glob(".*"))


def test_the_others_never_come(cli: Cli) -> None:
    given = {"RANK": "1", "WORLD_SIZE": "2"}
    run = subprocess.run(
        [sys.executable, "-m", "qtool", "inspect", "a.onnx"],
        env={k: v for k, v in os.environ.items() if not k.startswith("MASTER")} | given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.startswith("Error: cannot reach the other ranks of WORLD_SIZE (")


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK"])
def test_a_number_that_is_none(name: str, cli: Cli) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "qtool", "inspect", "a.onnx"],
        env={**os.environ, "WORLD_SIZE": "2", name: "x"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.startswith(f"Error: the environment variable {name} is 'x', not a number;")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_rank_that_waits_can_be_ended(number: signal.Signals, cli: Cli) -> None:
    """It waits in C++ for those that never come."""
    given = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29713"}
    program = (
        "import sys, threading, torch.distributed as dist, qtool.cli\n"
        "wait = dist.init_process_group\n"
        "def waiting(*a): print('waits', flush=True); wait(*a)\n"
        "dist.init_process_group = waiting\n"
        "sys.argv[1:] = ['inspect', 'a.onnx']; qtool.cli.main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **given},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        assert process.wait(60) == -number
