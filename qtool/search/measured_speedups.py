"""How fast files are beside float: the middle of as many short sessions as the time allows.

Within a session the interval is narrow, but where its memory lies and what else the machine does
then moves the ratio of two files by about 5 % from one session to the next, and now and then by a
fifth. More runs of one session do not help, more sessions do: of a network of a tenth of a
millisecond the middle of fifteen, made in half a second, is off by half a percent, and no odd one
moves it. Large networks get the least number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from qtool.core.progress import track_task
from qtool.evaluation.latency.interleaved_timing import (
    Ratio,
    median_interval,
    thread_clock,
    time_files,
)

MIN_SESSIONS, MAX_SESSIONS = 3, 15  # sessions
MIN_ROUNDS = 5  # in each of them

Found = TypeVar("Found")


def repeat_sessions(one: Callable[[], Found], seconds: float) -> list[Found]:
    """What each of some sessions says: as many as fit into the seconds, within bounds."""
    start = time.perf_counter()
    found = [one() for _ in range(MIN_SESSIONS)]
    while len(found) < MAX_SESSIONS and time.perf_counter() - start < seconds:
        found.append(one())
    return found


def measure_speedups(
    reference: Path,
    files: Sequence[Path],
    inputs: Sequence[np.ndarray[Any, Any]],
    seconds: float,
) -> tuple[Ratio, ...]:
    """Files beside the reference, in turns.

    Args:
        seconds: for each file, in all sessions together.
    """
    both, whole = [reference, *files], seconds * len(files)

    def one() -> Sequence[Ratio]:
        each = whole / MAX_SESSIONS
        found = time_files(both, inputs, seconds=each, least_rounds=MIN_ROUNDS, clock=thread_clock)
        return found.ratios[1:]

    with track_task("timing"):
        found = repeat_sessions(one, whole)
    return tuple(map(_middle, zip(*found, strict=True)))


def _middle(ratios: Sequence[Ratio]) -> Ratio:
    """The medians' median, with the ends that most sessions leave open: what is open is mostly
    between them."""
    return Ratio(
        float(np.median([r.median for r in ratios])),
        median_interval(np.array([r.low for r in ratios]))[0],
        median_interval(np.array([r.high for r in ratios]))[1],
        min(r.p10 for r in ratios),
        max(r.p90 for r in ratios),
    )
