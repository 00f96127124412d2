"""Kills `qtool blockwise` at random moments, and starts it again, until it is done: the result has
to have the bytes of a run that nobody disturbed.

    python benchmarks/large/random_llama.py FOLDER --width 256 --layers 4 --words 2000
    python benchmarks/large/kills.py FOLDER SCRATCH --kills 20
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from command import content, run, started, words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--block", default="2", help="MiB")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for name in ("whole", "killed"):
        (given.scratch / name).mkdir(parents=True, exist_ok=True)
    data = words(given.scratch / "ids.npz", given.samples, 32, given.words)
    more = ("--block", given.block)
    whole, killed = (given.scratch / name / "model.onnx" for name in ("whole", "killed"))
    alone = run(given.folder, data, whole, *more)
    print(f"undisturbed: {alone.seconds:.0f} s, peak {alone.peak:.0f} MiB, {content(whole)}")
    draws, kills, ended = np.random.default_rng(given.seed), 0, False
    while not ended:
        process = started(given.folder, data, killed, *more)
        wait = draws.uniform(0, alone.seconds) if kills < given.kills else None
        began = time.monotonic()
        while process.poll() is None and (wait is None or time.monotonic() - began < wait):
            time.sleep(0.02)
        ended = process.poll() is not None
        if ended and process.returncode:
            raise SystemExit(f"it failed after {kills} kills: exit code {process.returncode}")
        if not ended:
            process.kill()
            process.wait()
            kills += 1
            done = len(list(killed.parent.glob("*.blocks/block-*.json")))
            print(f"kill {kills} after {wait:.1f} s: {done} blocks are done", flush=True)
        elif kills < given.kills:  # from the beginning, for the kills that are left
            same(whole, killed)
            for file in killed.parent.iterdir():
                file.unlink()
            ended = False
    same(whole, killed)
    print(f"{kills} kills: same bytes")


def same(whole: Path, killed: Path) -> None:
    if content(whole) != content(killed):
        raise SystemExit(f"other bytes: {content(killed)}")


if __name__ == "__main__":
    main()
