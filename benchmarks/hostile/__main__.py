"""Throws hostile inputs at every surface that reads files or arguments, and counts what goes wrong.

    python benchmarks/hostile [--count 1500] [--seed 0] [--only SURFACE,...] [--keep FOLDER]

Each input is a damaged or tampered file, folder or argument of a command, which runs in a forked
process of one that has imported everything. What must not happen: no end within 60 s, exit code 70,
a traceback, more than one line of refusal, a library's warning, code of a file that runs (it makes
a canary file), or a peak of memory of more than 2 GiB above the process's own. Input 17 of a
surface is the same on every machine; `--keep` stores the folders of those that went wrong.

Needs transformers, tokenizers and ai-edge-litert.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from seeds import CANARY, write_seeds  # noqa: E402  # found next to this file
from surfaces import SURFACES, Case  # noqa: E402

DEADLINE = 60.0  # seconds
ABOVE = 2 << 30  # bytes of peak memory above those of the process at rest
BAD = ("hang", "crash", "exit 70", "traceback", "code run", "memory", "several lines", "warning")
WARNING = re.compile(r"^\S+:\d+: \w*Warning: |\[[WE]:onnxruntime", re.MULTILINE)
"""Of Python, or of a library in C++."""


def cases(count: int, seed: int, only: set[str]) -> list[Case]:
    """Return the inputs, divided over the surfaces by their shares."""
    chosen = [s for s in SURFACES if not only or s.name in only]
    whole = sum(s.share for s in chosen)
    sizes = [round(count * s.share / whole) for s in chosen]
    sizes[0] += count - sum(sizes)
    return [
        Case(s, f"{s.name}-{i}", random.Random(f"{seed} {s.name} {i}"))  # noqa: S311  # no secret
        for s, size in zip(chosen, sizes, strict=True)
        for i in range(size)
    ]


def run_case(case: Case, seeds: Path, folder: Path) -> dict[str, Any]:
    """Run one input in this process, in a folder of its own; return what came of it."""
    from qtool.cli import main

    folder.mkdir()
    os.chdir(folder)
    tempfile.tempdir = str(folder)
    arguments = case.surface.make(seeds, case.random)
    (folder / "arguments").write_text(json.dumps(arguments))
    output = os.open(folder / "printed", os.O_CREAT | os.O_RDWR)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    failure = ""
    try:
        main.main(args=arguments, prog_name="qtool")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  # what the command lets through is what is looked for
        code, failure = -1, traceback.format_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return {"code": code, "failure": failure, "peak": memory("VmHWM")}


def memory(key: str) -> int:
    """Return a size of this process in bytes, of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def refusal(folder: Path) -> str:
    """Return the sentence of a refusal."""
    printed = (folder / "printed").read_text(errors="replace")
    return next((x for x in printed.splitlines() if x.startswith("Error: ")), "")


def judge(result: dict[str, Any], folder: Path, rest: int, canary: Path) -> str:
    """Return what an input came to: right, refused, or one of BAD."""
    printed = (folder / "printed").read_text(errors="replace") if folder.exists() else ""
    if canary.exists():
        canary.unlink()
        return "code run"
    if result["failure"] or "Traceback (most recent call last)" in printed:
        return "traceback"
    if result["code"] == 70:
        return "exit 70"
    if result["peak"] > rest + ABOVE:
        return "memory"
    if WARNING.search(printed):
        return "warning"
    errors = [line for line in printed.splitlines() if line.startswith("Error: ")]
    if result["code"] == 2 and len(errors) != 1:
        return "several lines"
    # 3 and 4 are the gate's: inconclusive, not comparable
    failed = dict.fromkeys((1, 3, 4), "failed check")
    return {0: "right", 2: "refused", **failed}.get(result["code"], "crash")


def work(todo: list[Case], seeds: Path, place: Path, pipe: int) -> None:
    """Run inputs one after the other in this forked process, with a line of JSON for each."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + (12 << 30),) * 2)
    for case in todo:
        try:
            result = run_case(case, seeds, place / case.name)
        except BaseException:  # noqa: BLE001  # an error of a surface itself
            result = {"code": -1, "failure": traceback.format_exc(), "peak": 0}
        os.write(pipe, json.dumps(result).encode() + b"\n")
    os._exit(0)


Outcome = tuple[Case, dict[str, Any], str]


def run(todo: list[Case], seeds: Path, place: Path) -> Iterator[Outcome]:
    """Yield what each input came to; a process that hangs or dies is replaced for the next one."""
    canary, rest = seeds / CANARY, memory("VmRSS")
    while todo:
        reader, writer = os.pipe()
        sys.stdout.flush()
        process = os.fork()
        if not process:
            work(todo, seeds, place, writer)
        os.close(writer)
        for line in lines(reader, len(todo)):
            if line in ("hang", "crash"):
                with suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
                yield todo.pop(0), {}, line
                break
            case, result = todo.pop(0), json.loads(line)
            yield case, result, judge(result, place / case.name, rest, canary)
        os.waitpid(process, 0)
        os.close(reader)


def lines(reader: int, count: int) -> Iterator[str]:
    """Yield up to `count` lines of a pipe; "hang" if one takes longer than DEADLINE, and "crash" if
    the pipe is closed before."""
    buffer = b""
    while count:
        if not select.select([reader], [], [], DEADLINE)[0]:
            yield "hang"
            return
        if not (received := os.read(reader, 1 << 16)):
            yield "crash"
            return
        *whole, buffer = (buffer + received).split(b"\n")
        yield from (line.decode() for line in whole)
        count -= len(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="surfaces, separated by commas")
    parser.add_argument("--refusals", action="store_true", help="list the sentences")
    parser.add_argument("--keep", type=Path, help="folder for inputs that went wrong")
    options = parser.parse_args()
    todo = cases(options.count, options.seed, set(filter(None, options.only.split(","))))
    counts, started = Counter[tuple[str, str]](), time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        seeds, place = Path(name) / "seeds", Path(name) / "cases"
        for folder in (seeds, place):
            folder.mkdir()
        write_seeds(seeds)
        print(f"seeds after {time.monotonic() - started:.0f} s", flush=True)
        for case, result, verdict in run(todo, seeds, place):
            counts[case.surface.name, verdict] += 1
            if options.refusals and verdict == "refused":
                print(case.name, refusal(place / case.name)[:160], flush=True)
            if verdict in BAD:
                detail = str(result.get("failure", "")).strip().splitlines()[-1:]
                arguments = (place / case.name / "arguments").read_text()
                print(verdict, case.name, arguments, *detail, flush=True)
            if verdict in BAD and options.keep:
                with suppress(shutil.Error):  # pipes are not copied
                    shutil.copytree(place / case.name, options.keep / case.name, symlinks=True)
            shutil.rmtree(place / case.name, ignore_errors=True)
    verdicts = sorted({verdict for _, verdict in counts}, key=lambda v: (v in BAD, v))
    print(f"| surface | inputs | {' | '.join(verdicts)} |\n|---{'|---' * (1 + len(verdicts))}|")
    for surface in (s.name for s in SURFACES if any(s.name == n for n, _ in counts)):
        row = [counts[surface, verdict] for verdict in verdicts]
        print(f"| {surface} | {sum(row)} | {' | '.join(map(str, row))} |")
    totals = [sum(n for (_, v), n in counts.items() if v == verdict) for verdict in verdicts]
    print(f"| all | {sum(totals)} | {' | '.join(map(str, totals))} |")
    print(f"{time.monotonic() - started:.0f} s")
    raise SystemExit(any(verdict in BAD for _, verdict in counts))


if __name__ == "__main__":
    main()
