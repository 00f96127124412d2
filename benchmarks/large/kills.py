"""Kills `quantize_by_blocks` at random moments (SIGKILL), and starts it again, until it is done:
the result has to have the bytes of a run that nobody disturbed.

    python benchmarks/large/kills.py SCRATCH --kills 20

The network is small, and processes are forked behind the imports, so that kills fall into the work.
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
from safetensors.torch import save_file
from torch import nn

import qtool

WIDTH = 96


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def network(layers: int) -> nn.Module:
    return nn.Sequential(*(Layer() for _ in range(layers)), nn.Linear(WIDTH, 16))


def converted(folder: Path, out: Path, layers: int) -> None:
    random = torch.Generator().manual_seed(0)
    data = [torch.randn(16, WIDTH, generator=random) for _ in range(16)]
    with qtool.unfilled():
        model = network(layers)
    options = {"mode": "weight-only-int4", "accuracy": "balanced", "block": 230_000}
    qtool.quantize_by_blocks(folder, data, out, model=model, **options)


def started(folder: Path, out: Path, layers: int) -> int:
    """The number of a process that converts."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            converted(folder, out, layers)
            code = 0
        finally:
            os._exit(code)
    return process


def ended(process: int, after: float | None) -> bool:
    """Whether a process came to its end; killed `after` so many seconds."""
    begin = time.monotonic()
    while after is None or time.monotonic() - begin < after:
        done, status = os.waitpid(process, os.WNOHANG)
        if done and os.waitstatus_to_exitcode(status):
            raise SystemExit(f"it failed: exit code {os.waitstatus_to_exitcode(status)}")
        if done:
            return True
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)  # nothing to fork but this thread
    torch.manual_seed(0)
    places = {name: given.scratch / name for name in ("weights", "whole", "killed")}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    save_file(network(given.layers).state_dict(), places["weights"] / "model.safetensors")
    whole, killed = (places[name] / "model.onnx" for name in ("whole", "killed"))
    run = (places["weights"], whole, given.layers)
    ended(started(*run), None)  # the first one imports what is imported late
    begin = time.monotonic()
    ended(started(*run), None)
    took, wanted = time.monotonic() - begin, content(whole)
    draws, kills, where = np.random.default_rng(given.seed), 0, Counter[int]()
    results = 0
    while kills < given.kills or results == 0:
        after = draws.uniform(0, took) if kills < given.kills else None
        if not ended(started(places["weights"], killed, given.layers), after):
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
