"""Kills runs of qtool at random moments, and checks what is left.

    python benchmarks/kills.py [--kills 200] [--signals 200] [--seed 0]

Each of calibrate, convert, quantize and report is run on the sample network again and again. With
SIGKILL: the old file or a complete new one remains, and after one undisturbed run nothing else,
neither next to it nor in the folder for temporary files. With SIGINT and SIGTERM: the same at
once, and the exit code is 130 or 143 (or that of a run that had ended already).

Runs are forked from a process that has loaded and traced everything once, so that signals reach the
work and not the imports.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIGITS = ("examples.digits.network:digits_net", "--weights", "examples/digits/weights.safetensors")
IMAGES = "calib_data/digits"
LOADED = (
    *("torch.export", "torch.onnx", "torch._dynamo", "torch._inductor", "onnxruntime"),
    *("onnxscript", "onnx_ir", "matplotlib.figure", "jinja2", "sympy"),
    *(
        "qtool.cli",
        "qtool.api",
        "qtool.evaluation.report.page",
        "qtool.backends.onnx.export",
        "examples.digits.network",
    ),
)
QUICK = ("--seconds", "0")
BRIEF = ("--seconds", "0.05", "--batch-sizes", "1", "--layer-samples", "64")
LABELLED = ("--data", "examples/digits/eval.npz", "--labels", "labels")


@dataclass(frozen=True)
class Command:
    """A command, and the name of what it writes."""

    arguments: tuple[str, ...]
    writes: str


def commands(work: Path) -> dict[str, Command]:
    made = str(work / "made.calib")
    return {
        "calibrate": Command(("calibrate", *DIGITS, "--data", IMAGES), "digits.calib"),
        "convert": Command(("convert", *DIGITS, "--calibration", made, *QUICK), "digits.onnx"),
        "quantize": Command(("quantize", *DIGITS, "--data", IMAGES, *QUICK), "digits.onnx"),
        "report": Command(
            ("report", str(work / "made.onnx"), "--model", *DIGITS, *LABELLED), "report"
        ),
    }


def run(arguments: tuple[str, ...], ends_in: float | None = None, number: int = 0) -> int:
    """Forks a run, sends it a signal after so many seconds; its exit code, -9 if it was killed."""
    child = os.fork()
    if child == 0:
        _be_qtool(arguments)
    if ends_in is not None:
        time.sleep(ends_in)
        with suppress(ProcessLookupError):
            os.kill(child, number)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _be_qtool(arguments: tuple[str, ...]) -> None:
    """In the child: the command, with its output thrown away; does not return."""
    from qtool.cli import main

    code = 1
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(os.open(said(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main(list(arguments), prog_name="qtool")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:  # before the command began, or behind it
        code = 128 + signal.SIGINT
    finally:
        os._exit(code)


def said() -> Path:
    """What the last run had to say of its errors."""
    return Path(tempfile.gettempdir()) / "said"


def state(path: Path) -> dict[str, bytes]:
    """All bytes of a file or folder, without what differs from run to run."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(p.relative_to(path.parent)): p.read_bytes() for p in files}


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def scratch() -> set[str]:
    return {n for n in names(Path(tempfile.gettempdir())) if n.startswith(".qtool")}


class Trials:
    """Runs of one command into one folder."""

    def __init__(self, name: str, command: Command, work: Path, seed: int) -> None:
        self.name, self.out = name, work / "out"
        self.random = random.Random(seed)  # noqa: S311  # moments, no secrets
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        self.target = self.out / command.writes
        self.arguments = (*command.arguments, "-o", str(self.target))
        begin = time.monotonic()
        assert run(self.arguments) == 0, f"{name} does not run"
        self.seconds = time.monotonic() - begin
        self.new = state(self.target)
        self.old = dict(self.new)

    def whole(self) -> bool:
        """The files of one run; those of reports differ in times."""
        found = state(self.target)
        return found == self.new if self.name != "report" else found.keys() == self.new.keys()

    def ended(self, number: int) -> tuple[int, bool, int]:
        """Exit code, whether the target is whole, and how many leftovers there are."""
        code = run(self.arguments, self.random.uniform(0, self.seconds), number)
        kept = {f".{self.target.name}.resume"}  # what an interrupted report goes on from
        return code, self.whole(), len(self.left() - kept)

    def left(self) -> set[str]:
        return (names(self.out) - {self.target.name}) | scratch()


def kills(trials: Trials, count: int) -> Counter[str]:
    found = Counter[str]()
    for _ in range(count):
        code, whole, left = trials.ended(signal.SIGKILL)
        found["killed" if code == -signal.SIGKILL else "had ended"] += 1
        found["left by a kill"] += left
        found["broken"] += not whole
    assert run(trials.arguments) == 0
    found["left after the next run"] = len(names(trials.out) - {trials.target.name}) + len(
        scratch()
    )
    return found


def signals(trials: Trials, count: int) -> Counter[str]:
    found = Counter[str]()
    for i in range(count):
        number = (signal.SIGINT, signal.SIGTERM)[i % 2]
        code, whole, left = trials.ended(number)
        known = {128 + number: number.name, 0: "had ended"}
        found[known.get(code, f"wrong code {code}")] += 1
        if code not in known:
            print(f"{number.name}: {code}: {said().read_text()[:2000]}", flush=True)
        found["left after a signal"] += left
        if left:
            print(f"{number.name} left {sorted(trials.left())}", flush=True)
            assert run(trials.arguments) == 0
        found["broken"] += not whole
    return found


def warm() -> None:
    """Loads what a conversion loads as it goes; with one thread, as what is forked has no other."""
    for name in LOADED:
        import_module(name)
    import torch

    import qtool
    from examples.digits.network import digits_net

    torch.set_num_threads(1)
    qtool.quantize(digits_net(), [torch.rand(2, 1, 8, 8)]).to_onnx()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--signals", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(commands(Path())), default=None)
    asked = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    warm()
    total = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        tempfile.tempdir = str(work / "tmp")
        os.environ["TMPDIR"] = tempfile.tempdir
        Path(tempfile.tempdir).mkdir()
        for name, output in (("calibrate", "made.calib"), ("quantize", "made.onnx")):
            made = (*commands(work)[name].arguments, "-o", str(work / output))
            assert run(made) == 0, f"{name} does not run"
        chosen = {k: v for k, v in commands(work).items() if asked.only in (None, k)}
        for name, command in chosen.items():
            trials = Trials(name, command, work, asked.seed)
            found = kills(trials, -(-asked.kills // len(chosen))) + signals(
                trials, -(-asked.signals // len(chosen))
            )
            print(f"{name} ({trials.seconds:.1f} s): {dict(found)}", flush=True)
            total += found
    print(f"all: {dict(total)}")
    bad = ("broken", "left after the next run", "left after a signal")
    wrong = sum(total[b] for b in bad) + sum(n for k, n in total.items() if k.startswith("wrong"))
    print(f"must be 0: {wrong}")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
