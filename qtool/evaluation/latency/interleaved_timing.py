"""Latency of several sessions, honestly compared: interleaved runs in one process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnxruntime.session import RUNTIME, feeds, session
from qtool.core.errors import VerificationError

WARM_UP = 3
MIN_ROUNDS = 15
CHECK_EVERY = 10  # rounds between looks at the interval
Z95 = 1.96
FINE = 1e-5  # seconds: what a clock has to tell apart

Clock = Callable[[], float]
"""Seconds since some moment."""

thread_clock: Clock = (
    time.thread_time if time.get_clock_info("thread_time").resolution <= FINE else time.perf_counter
)
"""What the processor has done for this thread, where the system tells it finely: the turns of other
processes do not count, which a long run is cut by and a short one may slip through between."""


@dataclass(frozen=True)
class Latency:
    """milliseconds: median of one run of each file. ratios: first file / each, paired median."""

    milliseconds: tuple[float, ...]
    ratios: tuple[float, ...]
    rounds: int


@dataclass(frozen=True)
class Spread:
    """Milliseconds of one run: median, and the 10th and 90th percentile."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """Time of the reference / time of this model, above 1 where this one is faster: the median of
    paired runs, the ends of its 95 % confidence interval, and the 10th and 90th percentile."""

    median: float
    low: float
    high: float
    p10: float
    p90: float

    @property
    def width(self) -> float:
        """Half of the interval, relative to the median."""
        return (self.high - self.low) / 2 / self.median


@dataclass(frozen=True)
class Timing:
    """Every model at one batch size and number of threads, in turns. seconds: how long it took."""

    batch: int
    threads: int
    rounds: int
    seconds: float
    models: tuple[Spread, ...]
    ratios: tuple[Ratio, ...]


def time_files(
    files: Sequence[str | Path],
    inputs: Sequence[np.ndarray[Any, Any]],
    *,
    threads: int = 1,
    seconds: float = 2.0,
    precision: float | None = None,
    least_rounds: int = MIN_ROUNDS,
    in_a_row: int = 1,
    tick: Callable[[Timing], None] = lambda _: None,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Times ONNX files on the same batch, in turns.

    The order changes from round to round, so that no file always runs in the caches its
    predecessor left. A ratio comes from the two runs of one round: both see the same machine,
    so that other load falls out.

    Args:
        seconds: how long to measure; with `precision`, at most.
        precision: stop as soon as the interval of every ratio is within this of its median (0.01:
            one percent either way).
        in_a_row: runs of each file in its turn, of which the mean counts: for what runs again and
            again by itself, as the steps of a decoder do, and finds its weights in the caches.
        tick: called now and then with what is known so far.
        clock: what single runs are timed by; `worked` sees one thread alone.
    """
    start = time.perf_counter()
    times: list[list[float]] = []
    batch = len(inputs[0]) if inputs and inputs[0].ndim else 1

    def known() -> Timing:
        return _timing(np.array(times), batch, threads, time.perf_counter() - start)

    for row in _rounds(files, inputs, threads, clock, in_a_row):
        times.append(row)
        enough = len(times) >= least_rounds
        if enough and time.perf_counter() - start >= seconds:
            break
        if enough and len(times) % CHECK_EVERY == 0:
            tick(known())
            if precision is not None and all(r.width <= precision for r in known().ratios):
                break
    return known()


def median_latency(
    files: Sequence[str | Path],
    inputs: Sequence[np.ndarray[Any, Any]],
    *,
    threads: int = 1,
    seconds: float = 2.0,
    least_rounds: int = MIN_ROUNDS,
) -> Latency:
    """`timed`, in short: medians alone."""
    found = time_files(files, inputs, threads=threads, seconds=seconds, least_rounds=least_rounds)
    medians, ratios = (s.median for s in found.models), (r.median for r in found.ratios)
    return Latency(tuple(medians), tuple(ratios), found.rounds)


def _rounds(
    files: Sequence[str | Path],
    inputs: Sequence[np.ndarray[Any, Any]],
    threads: int,
    clock: Clock,
    in_a_row: int = 1,
) -> Iterator[list[float]]:
    """Seconds of one run of each file, round after round, after a warm-up."""
    sessions = [session(f, threads=threads) for f in files]
    fed = [feeds(s, list(inputs)) for s in sessions]
    try:
        for model, feed in zip(sessions, fed, strict=True):
            for _ in range(WARM_UP):
                model.run(None, feed)
    except Exception as error:
        raise VerificationError(f"{RUNTIME} fails on the model: {error}") from error
    first = 0
    while True:
        row = [0.0] * len(sessions)
        for k in range(len(sessions)):
            i = (first + k) % len(sessions)
            start = clock()
            for _ in range(in_a_row):
                sessions[i].run(None, fed[i])
            row[i] = (clock() - start) / in_a_row
        yield row
        first += 1


def _timing(times: np.ndarray[Any, Any], batch: int, threads: int, seconds: float) -> Timing:
    low, median, high = 1000 * np.percentile(times, [10, 50, 90], axis=0)
    ratios = times[:, :1] / times
    models = [
        Spread(float(m), float(a), float(b)) for m, a, b in zip(median, low, high, strict=True)
    ]
    return Timing(
        batch, threads, len(times), seconds, tuple(models), tuple(_ratio(c) for c in ratios.T)
    )


def _ratio(column: np.ndarray[Any, Any]) -> Ratio:
    low, high = median_interval(column)
    p10, median, p90 = np.percentile(column, [10, 50, 90])
    return Ratio(float(median), low, high, float(p10), float(p90))


def median_interval(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """A 95 % interval of the median from order statistics: no assumption on the distribution."""
    ordered = np.sort(values)
    count = len(ordered)
    reach = Z95 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach))
    return float(ordered[low]), float(ordered[high])
