"""Speed-up of files over the float model: the median of as many short sessions as the time allows.

Within a session the interval is narrow, but memory placement and other load move the ratio of two
files by about 5 % between sessions, and sometimes by 20 %. More sessions help, more runs in one do
not: for a network of 0.1 ms the median of 15 sessions, taken in half a second, is off by 0.5 %, and
outliers do not move it. Large networks get the minimum number of sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from qtool.core.option_names import NATIVE
from qtool.core.progress import track_task
from qtool.evaluation.latency.interleaved_timing import Ratio, time_files
from qtool.metrics.medians import median_interval

MIN_SESSIONS, MAX_SESSIONS = 3, 15  # sessions
MIN_ROUNDS = 5  # in each session

Measured = TypeVar("Measured")


def repeat_sessions(one: Callable[[], Measured], seconds: float) -> list[Measured]:
    """Return the measurements of as many sessions as fit into the seconds, within the limits."""
    start = time.perf_counter()
    sessions = [one() for _ in range(MIN_SESSIONS)]
    while len(sessions) < MAX_SESSIONS and time.perf_counter() - start < seconds:
        sessions.append(one())
    return sessions


def measure_speedups(
    reference: Path,
    files: Sequence[Path],
    inputs: Sequence[np.ndarray[Any, Any]],
    seconds: float,
    runtime: str = NATIVE,
) -> tuple[Ratio, ...]:
    """Return the speed-up of each file over the reference, timed in turns.

    Args:
        seconds: per file, in all sessions together.
        runtime: see `open_model`.
    """
    both, whole = [reference, *files], seconds * len(files)

    def one() -> Sequence[Ratio]:
        each = whole / MAX_SESSIONS
        timing = time_files(both, inputs, seconds=each, least_rounds=MIN_ROUNDS, runtime=runtime)
        return timing.ratios[1:]

    with track_task("timing"):
        sessions = repeat_sessions(one, whole)
    return tuple(map(_median, zip(*sessions, strict=True)))


def _median(ratios: Sequence[Ratio]) -> Ratio:
    """Return the median of the medians.

    Its interval is that of the sessions' medians, and at least as wide as the median session's own
    interval: one session under other load, with a wide interval, does not make it wide.
    """
    medians, lows, highs = np.array([(r.median, r.low, r.high) for r in ratios]).T
    low, high = median_interval(medians)
    return Ratio(
        float(np.median(medians)),
        min(low, float(np.median(lows))),
        max(high, float(np.median(highs))),
        min(r.p10 for r in ratios),
        max(r.p90 for r in ratios),
    )
