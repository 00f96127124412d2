"""Kills `qtool quantize` of a model folder in a control group (SIGKILL), at random moments, and
resumes it: the result has to have the bytes of an undisturbed run.

    python benchmarks/large/kills_in_group.py FOLDER SCRATCH --kills 20 --limit 3072

FOLDER is a decoder, such as random_llama.py writes; the file gets its cache and genai_config.json.
The kills are spread over the blocks, so that each resume has something left to do.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from command import content, words
from limit import Group, forgotten, limited


@dataclass(frozen=True)
class Usage:
    """CPU seconds and the peak of resident memory, in MiB, of one process."""

    code: int
    cpu: float
    peak: float


def command(folder: Path, data: Path, out: Path, memory: str) -> list[str]:
    """Return the command line: int4 with a KV cache, block by block."""
    return [
        *(sys.executable, "-m", "qtool", "quantize", str(folder), "--data", str(data)),
        *("--task", "text-generation-with-past", "--mode", "weight-only-int4"),
        *("--accuracy", "fast", "--memory", memory, "-q", "-o", str(out)),
    ]


def blocks(out: Path) -> int:
    """Return the number of blocks that a checkpoint has."""
    return len(list(out.parent.glob("*.blocks/block-*.json")))


def wait(process: subprocess.Popen[bytes]) -> Usage:
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Usage(process.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def run(line: list[str], group: Group, kill_at: int | None, delay: float, out: Path) -> Usage:
    """Run the command; kill it `delay` seconds after its checkpoint has `kill_at` blocks."""
    process = subprocess.Popen(line, preexec_fn=group.enter)  # noqa: PLW1509  # no threads
    while kill_at is not None and process.poll() is None:
        if blocks(out) >= kill_at:
            time.sleep(delay)
            process.kill()
            break
        time.sleep(0.05)
    return wait(process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--limit", type=int, default=3072, help="of memory in MiB")
    parser.add_argument("--memory", default="2GiB", help="of qtool, which chooses blocks by it")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--words", type=int, default=32000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    places = [given.scratch / name / "model.onnx" for name in ("whole", "killed")]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
    data = words(given.scratch / "ids.npz", given.samples, given.length, given.words)
    draws = np.random.default_rng(given.seed)
    expected = total = 0
    for place, kills in zip(places, (0, given.kills), strict=True):
        forgotten(given.folder)
        with limited(given.limit << 20) as group:
            line = command(given.folder, data, place, given.memory)
            usages = []
            for number in range(kills):
                at = round(total * (number + draws.random()) / kills)
                usages.append(run(line, group, at, draws.uniform(0, 5), place))
                print(f"killed with {blocks(place)} blocks: {usages[-1]}", flush=True)
                if usages[-1].code != -9:
                    raise SystemExit(f"exit code {usages[-1].code} where SIGKILL was sent")
            if not kills:
                total = count_blocks(line, group, place, usages)
            else:
                usages.append(run(line, group, None, 0, place))
            if usages[-1].code:
                raise SystemExit(f"failed: exit code {usages[-1].code}")
            print(
                f"{kills} kills: {sum(u.cpu for u in usages):.0f} core seconds, at most "
                f"{max(u.peak for u in usages):.0f} MiB resident, group {group.peak:.0f} MiB",
                flush=True,
            )
        expected = expected or content(place)
    print("same bytes" if content(places[1]) == expected else "OTHER BYTES", *map(content, places))


def count_blocks(line: list[str], group: Group, out: Path, usages: list[Usage]) -> int:
    """Run the command to its end, and return the number of blocks seen in its checkpoint."""
    process, most = subprocess.Popen(line, preexec_fn=group.enter), 0  # noqa: PLW1509
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        most = max(most, blocks(out))
        time.sleep(0.2)
    usages.append(wait(process))
    return most


if __name__ == "__main__":
    main()
