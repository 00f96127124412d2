"""Kills `quantize_by_blocks` at random moments (SIGKILL), and starts it again, until it is done:
the result has to have the bytes of an undisturbed run.

    python benchmarks/large/kills.py SCRATCH --kills 20

The network is a small Llama, and processes are forked behind the imports, so that kills fall into
the work.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from command import content
from random_llama import write

import qtool

SIZES = {"width": 64, "layers": 2, "words": 300}
BLOCK = 1 << 16  # bytes: some layers of the network


def converted(folder: Path, out: Path) -> None:
    random = torch.Generator().manual_seed(0)
    words = torch.randint(0, SIZES["words"], (16, 8, 16), generator=random)
    qtool.quantize_by_blocks(
        folder,
        [{"input_ids": ids} for ids in words],
        out,
        mode="weight-only-int4",
        accuracy="balanced",
        dynamic={"input_ids": {0: "batch", 1: "sequence"}},
        block=BLOCK,
    )


def started(folder: Path, out: Path) -> int:
    """The number of the process that converts."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            converted(folder, out)
            code = 0
        finally:
            os._exit(code)
    return process


def ended(process: int, after: float | None) -> bool:
    """Whether a process came to its end; it is killed `after` so many seconds."""
    begin, killed = time.monotonic(), False
    while not (state := os.waitpid(process, os.WNOHANG))[0]:
        if after is not None and not killed and time.monotonic() - begin > after:
            os.kill(process, signal.SIGKILL)
            killed = True
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(state[1])
    if code not in (0, -signal.SIGKILL if killed else 0):
        raise SystemExit(f"it failed: exit code {code}")
    return code == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)  # nothing to fork but this thread
    places = {name: given.scratch / name for name in ("weights", "whole", "killed")}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    write(places["weights"], **SIZES)
    whole, killed = (places[name] / "model.onnx" for name in ("whole", "killed"))
    run = places["weights"], whole
    ended(started(*run), None)  # the first one imports what is imported late
    begin = time.monotonic()
    ended(started(*run), None)
    took, wanted = time.monotonic() - begin, content(whole)
    draws, kills, where = np.random.default_rng(given.seed), 0, Counter[int]()
    results = 0
    while kills < given.kills or results == 0:
        after = draws.uniform(0, took) if kills < given.kills else None
        if not ended(started(places["weights"], killed), after):
            kills += 1
            where[len(list(killed.parent.glob("*.blocks/block-*.json")))] += 1
            continue
        results += 1
        if content(killed) != wanted:
            raise SystemExit(f"other bytes after {kills} kills")
        for file in killed.parent.iterdir():
            file.unlink()
    at = ", ".join(f"{n} with {k} blocks done" for k, n in sorted(where.items()))
    print(f"a run takes {took:.1f} s; {kills} kills ({at}), {results} results: same bytes")


if __name__ == "__main__":
    main()
