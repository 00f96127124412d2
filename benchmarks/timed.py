"""Speed of files over another in a fresh process: runs in turns, by thread CPU time.

    python benchmarks/timed.py INPUTS.npz SECONDS FLOAT FILE [FILE ...]

Prints JSON: for each FILE the median of the ratios of a round, its 95 % interval (bootstrap), the
tenth and ninetieth percentile of the ratios, and the median milliseconds of both. One thread. In a
round every file runs twice, in one order and in the reverse, so that a drift cancels out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measured import by_input, feed, session

WARM_UP, LEAST, DRAWS = 5, 15, 2000


def runs_of(path: Path, arrays: dict[str, np.ndarray]) -> Callable[[], object]:
    """One run of a file on inputs that it has already."""
    if path.suffix == ".tflite":
        from ai_edge_litert.interpreter import Interpreter

        model = Interpreter(str(path), num_threads=1)
        feed(model, arrays)
        return model.invoke
    runtime = session(path)
    inputs = by_input([i.name for i in runtime.get_inputs()], arrays)
    return lambda: runtime.run(None, inputs)


def rounds_of(runs: list[Callable[[], object]], seconds: float) -> np.ndarray:
    """Thread CPU seconds [rounds, runs] of one run."""
    for run in runs:
        for _ in range(WARM_UP):
            run()
    order = [*range(len(runs)), *reversed(range(len(runs)))]
    times: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(times) < LEAST or time.perf_counter() < end:
        row = [0.0] * len(runs)
        for i in order:
            start = time.thread_time()
            runs[i]()
            row[i] += (time.thread_time() - start) / 2
        times.append(row)
    return np.array(times)


def figures(plain: np.ndarray, coded: np.ndarray) -> dict[str, float]:
    """Of the seconds of two files in the same rounds."""
    ratios, random = plain / coded, np.random.default_rng(0)
    drawn = np.median(ratios[random.integers(0, len(ratios), (DRAWS, len(ratios)))], 1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    p10, middle, p90 = np.percentile(ratios, [10, 50, 90])
    row = {"ratio": middle, "low": low, "high": high, "p10": p10, "p90": p90}
    row |= {"float_ms": 1000 * np.median(plain), "int8_ms": 1000 * np.median(coded)}
    return {"rounds": float(len(ratios)), **{k: float(v) for k, v in row.items()}}


def main() -> None:
    inputs, seconds, *files = sys.argv[1:]
    with np.load(inputs) as stored:
        arrays = {name: stored[name] for name in stored.files}
    times = rounds_of([runs_of(Path(f), arrays) for f in files], float(seconds))
    print(json.dumps({"files": [figures(times[:, 0], row) for row in times.T[1:]]}))


if __name__ == "__main__":
    main()
