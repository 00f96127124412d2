"""Kills `quantize_by_blocks` at random moments (SIGKILL), and starts it again, until it is done:
the result has to have the bytes of an undisturbed run.

    python benchmarks/large/kills.py SCRATCH --kills 20 [--ranks 2]

The network is a small Llama, and processes are forked behind the imports, so that kills fall into
the work. With several ranks one of them is killed, the others have to end by themselves, and
another number of ranks goes on.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from command import content
from random_llama import write
from torch import distributed as dist

import qtool
from qtool.core.errors import RanksError
from qtool.distributed import DataShard

SIZES = {"width": 64, "layers": 2, "words": 300}
BLOCK = 1 << 16  # bytes: some layers of the network
GONE = 3  # the exit code of a rank that another one has ended


def converted(folder: Path, out: Path, rank: int, size: int, store: Path) -> None:
    random = torch.Generator().manual_seed(0)
    words = torch.randint(0, SIZES["words"], (16, 8, 16), generator=random)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    qtool.quantize_by_blocks(
        folder,
        DataShard([{"input_ids": ids} for ids in words], rank, size),
        out,
        mode="weight-only-int4",
        accuracy="balanced",
        dynamic={"input_ids": {0: "batch", 1: "sequence"}},
        block=BLOCK,
    )


def started(folder: Path, out: Path, size: int = 1) -> list[int]:
    """The numbers of the processes that convert."""
    found = []
    with tempfile.NamedTemporaryFile(prefix="store-", delete=False) as store:
        place = Path(store.name)
    place.unlink()
    for rank in range(size):
        process = os.fork()
        if process == 0:
            code = 1
            try:
                converted(folder, out, rank, size, place)
                code = 0
            except RanksError:
                code = GONE
            finally:
                os._exit(code)
        found.append(process)
    return found


def ended(processes: list[int], after: float | None, victim: int = 0) -> tuple[bool, float]:
    """Whether processes came to their end; one was killed `after` so many seconds, and the others
    ended by themselves in how many."""
    begin, left, killed = time.monotonic(), list(processes), 0.0
    while left:
        now = time.monotonic()
        if after is not None and not killed and now - begin > after:
            if processes[victim] in left:
                os.kill(processes[victim], signal.SIGKILL)
                killed = now
            after = None
        for process in list(left):
            done, status = os.waitpid(process, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else 0
            if done:
                left.remove(process)
            if code and not (killed and code in (GONE, -signal.SIGKILL)):
                raise SystemExit(f"it failed: exit code {code}")
        time.sleep(0.005)
    return not killed, time.monotonic() - killed if killed else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=1, help="at most; their number is drawn")
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
    results, longest = 0, 0.0
    while kills < given.kills or results == 0:
        size = int(draws.integers(1, given.ranks, endpoint=True)) if given.ranks > 1 else 1
        after = draws.uniform(0, took) if kills < given.kills else None
        run, victim = (places["weights"], killed, size), int(draws.integers(size))
        whole_run, seconds = ended(started(*run), after, victim)
        if not whole_run:
            kills, longest = kills + 1, max(longest, seconds)
            where[len(list(killed.parent.glob("*.blocks/block-*.json")))] += 1
            continue
        results += 1
        if content(killed) != wanted:
            raise SystemExit(f"other bytes after {kills} kills")
        for file in killed.parent.iterdir():
            file.unlink()
    at = ", ".join(f"{n} with {k} blocks done" for k, n in sorted(where.items()))
    print(f"a run takes {took:.1f} s; {kills} kills ({at}), {results} results: same bytes")
    if given.ranks > 1:
        print(f"1 to {given.ranks} ranks; the others ended within {longest:.1f} s")


if __name__ == "__main__":
    main()
