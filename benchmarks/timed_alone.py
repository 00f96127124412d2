"""Speed of files over float in a fresh process.

    python benchmarks/timed_alone.py INPUT.npy SESSIONS RUNS FLOAT FILE [FILE ...]

Prints a list of times over that of float: of each file the median of its sessions, in turns. A
process that has made and run a thousand models hands out memory in pieces, in which an int8 file
runs up to 13 % slower than where it starts afresh, and float hardly slower at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.evaluation.latency.interleaved_timing import thread_clock, time_files


def times(
    plain: Path, files: Sequence[Path], one: np.ndarray[Any, Any], sessions: int, runs: int
) -> list[float]:
    """Starts the process."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "input.npy"
        np.save(given, one)
        words = [sys.executable, __file__, given, sessions, runs, plain, *files]
        told = subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True)
    found: list[float] = json.loads(told.stdout)
    return found


def _cost(plain: str, file: str, one: np.ndarray[Any, Any], runs: int) -> float:
    found = time_files([plain, file], [one], seconds=0, least_rounds=runs, clock=thread_clock)
    return 1 / found.ratios[1].median


def main() -> None:
    given, sessions, runs, plain, *files = sys.argv[1:]
    one = np.load(given)
    rounds = [[_cost(plain, f, one, int(runs)) for f in files] for _ in range(int(sessions))]
    print(json.dumps(np.median(rounds, 0).tolist()))


if __name__ == "__main__":
    main()
