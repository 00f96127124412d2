"""Latency of several ONNX files, compared by interleaved runs in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from qtool.backends.formats import open_model
from qtool.backends.session import Clock, in_order_of
from qtool.core import number_texts
from qtool.core.number_texts import quantity
from qtool.core.option_names import NATIVE
from qtool.core.types import Array
from qtool.metrics.intervals import median_interval

WARM_UP = 3
MIN_ROUNDS = 15
CHECK_EVERY = 10  # rounds between checks of the interval
FINE = 1e-5  # seconds: required resolution of the clock
MOST_IN_A_ROW = 4096  # runs of a turn: a turn shorter than a tick of the clock takes more of them
TICK = 1e-9  # seconds: of the finest clock; the time of a turn is at least that

PROMPT, STEP = "prompt", "step"
"""Phases of a decoder: all tokens of a text at once; one token with the others in the cache."""

thread_clock: Clock = (
    time.thread_time if time.get_clock_info("thread_time").resolution <= FINE else time.perf_counter
)
"""CPU time of this thread if the system measures it finely enough, else wall-clock time. CPU time
excludes other processes, which preempt long runs more often than short ones."""


def clock_for(threads: int) -> Clock:
    """Return the clock for models on this number of threads; one thread is that of the caller."""
    return thread_clock if threads == 1 else time.perf_counter


@dataclass(frozen=True)
class Spread:
    """Milliseconds of one run.

    Attributes:
        median: median of all runs; of a model after the first, the first one's median divided by
            the ratio, so that the two times have that ratio: with load of other processes, medians
            of each model alone may be of runs under different load.
        low, high: 10th and 90th percentile.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """Time of the reference / time of this model; above 1 if this one is faster.

    Attributes:
        median: median of paired runs.
        low, high: 95 % confidence interval of the median.
        p10, p90: 10th and 90th percentile of paired runs.
    """

    median: float
    low: float
    high: float
    p10: float
    p90: float

    @property
    def width(self) -> float:
        """Half of the confidence interval, relative to the median."""
        return (self.high - self.low) / 2 / self.median


@dataclass(frozen=True)
class Timing:
    """Latency of every model at one batch size and number of threads.

    Attributes:
        batch: number of samples.
        threads: number of threads.
        rounds: number of rounds, in each of which every model runs once.
        seconds: duration of the measurement.
        models, ratios: per model; ratios relative to the first one.
        phase: part of a decoder's work, "prompt" (all tokens at once) or "step" (one token, the
            others in the KV cache); "" for any other model.
        tokens: new tokens of each text; 0 without a phase.
        cached: tokens of each text in the KV cache.
        sizes: sizes of the batch that the first model leaves open, as "sequence 12"; "" without,
            and with a phase.
    """

    batch: int
    threads: int
    rounds: int
    seconds: float
    models: tuple[Spread, ...]
    ratios: tuple[Ratio, ...]
    phase: str = ""
    tokens: int = 0
    cached: int = 0
    sizes: str = ""

    @property
    def conditions(self) -> tuple[int, int]:
        """Batch size and number of threads."""
        return self.batch, self.threads

    @property
    def what(self) -> str:
        """What was timed: "batch 1, 1 thread", of a decoder after its phase."""
        threads = quantity(self.threads, "thread")
        size = ", ".join(filter(None, [f"batch {self.batch}", self.sizes, threads]))
        if self.phase == STEP:
            return f"step with {self.cached} cached tokens, {size}"
        return f"prompt of {self.tokens} tokens, {size}" if self.phase else size


def time_files(
    files: Sequence[str | Path],
    inputs: Sequence[Array],
    *,
    threads: int = 1,
    runtime: str = NATIVE,
    seconds: float = 2.0,
    precision: float | None = None,
    least_rounds: int = MIN_ROUNDS,
    clock: Clock | None = None,
) -> Timing:
    """Time ONNX files on the same batch, in turns.

    The order rotates from round to round, so that no file always runs with the caches of the same
    predecessor. A ratio compares two runs of one round, which cancels other load.

    Args:
        runtime: see `open_model`. One in another process measures its CPU time itself.
        seconds: duration of the measurement; with `precision`, the maximum.
        precision: stop when the interval of every ratio is within this of its median (0.01: 1 %
            either way).
        clock: clock for single runs; by default `clock_for` the threads.
    """
    start = time.perf_counter()
    times: list[list[float]] = []
    batch = len(inputs[0]) if inputs and inputs[0].ndim else 1

    def current() -> Timing:
        return _timing(np.array(times), batch, threads, time.perf_counter() - start)

    sessions = [open_model(f, threads, runtime) for f in files]
    if len(inputs) > 1:
        sessions = [in_order_of(sessions[0], each) for each in sessions]
    clock = clock or clock_for(threads)
    for row in _rounds([partial(s.seconds, inputs, clock=clock) for s in sessions]):
        times.append(row)
        if len(times) < least_rounds:
            continue
        if time.perf_counter() - start >= seconds:
            break
        if precision is None or len(times) % CHECK_EVERY:
            continue
        if all(r.width <= precision for r in current().ratios):
            break
    return current()


def _rounds(runs: Sequence[Callable[[int], float]]) -> Iterator[list[float]]:
    """Yield the seconds of one run of each file per round, after a warm-up.

    Args:
        runs: returns the seconds of a number of runs of a file.
    """
    in_a_row = _measurable(runs)
    first = 0
    while True:
        row = [0.0] * len(runs)
        for k in range(len(runs)):
            i = (first + k) % len(runs)
            row[i] = max(runs[i](in_a_row), TICK) / in_a_row
        yield row
        first += 1


def _measurable(runs: Sequence[Callable[[int], float]]) -> int:
    """Warm up, and return how many runs in a row take some time by the clock."""
    in_a_row, took = 1, [run(WARM_UP) for run in runs]
    while min(took) <= 0 and in_a_row < MOST_IN_A_ROW:
        in_a_row = max(2 * in_a_row, 2 * WARM_UP)
        took = [run(in_a_row) for run in runs]
    return in_a_row


def _timing(times: Array, batch: int, threads: int, seconds: float) -> Timing:
    low, median, high = 1000 * np.percentile(times, [10, 50, 90], axis=0)
    ratios = tuple(_ratio(column) for column in (times[:, :1] / times).T)
    models = [
        Spread(float(median[0]) / ratio.median, float(a), float(b))
        for ratio, a, b in zip(ratios, low, high, strict=True)
    ]
    return Timing(batch, threads, len(times), seconds, tuple(models), ratios)


def _ratio(column: Array) -> Ratio:
    low, high = median_interval(column)
    p10, median, p90 = np.percentile(column, [10, 50, 90])
    return Ratio(float(median), low, high, float(p10), float(p90))


Row = tuple[str, str]
"""Label and figures."""

FLOAT = "float"
"""Name of the reference, unless it is another quantized file."""


def speed_rows(timings: Sequence[Timing], model: int = 1, name: str = FLOAT) -> list[Row]:
    """Return the latency of a model, what counts first: of a decoder the step, then the prompt."""
    return [
        (timing.phase or "speed", speed_text(timing, model, name))
        for timing in sorted(timings, key=lambda timing: timing.phase != STEP)
    ]


def speed_text(timing: Timing, model: int = 1, name: str = FLOAT) -> str:
    """Return the latency of a model next to that of the reference."""
    reference, own = (number_texts.milliseconds(timing.models[i].median) for i in (0, model))
    ratio = number_texts.times(timing.ratios[model].median)
    what = timing.what.removeprefix(f"{timing.phase} ")
    return f"{own}, {ratio} as fast as {name} ({reference}; {what})"
