"""Files of candidates: written once each, timed against the float model, and their sizes.

Each file is timed when it is evaluated. Under another load the speed-up may differ: two files with
the same kernels, timed minutes apart, may differ by 10 % with narrow intervals. So the candidates
for the fastest file, the finalists, run again in the end, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qtool.api.quantized_model import QuantizedModel
from qtool.backends.formats import open_file
from qtool.conversion.quantized import Quantized
from qtool.core.option_names import MODEL_SUFFIXES, NATIVE
from qtool.core.progress import track_task
from qtool.core.types import Array
from qtool.evaluation.latency.interleaved_timing import Ratio, time_files
from qtool.metrics.intervals import median_interval
from qtool.planning.recipe import Recipe
from qtool.plugins.search.goals import TuneGoals
from qtool.plugins.search.judge import Trial, recipe_key

COST_MARGIN = 1.25  # of the least cost: more than sessions differ by
MAX_FINALISTS = 6
MIN_SESSIONS, MAX_SESSIONS = 3, 15  # sessions
MIN_ROUNDS = 5  # in each session


@dataclass(frozen=True)
class CandidateFiles:
    """Writes and times the files of a search.

    Attributes:
        folder: folder for the files.
        float_file: the float model, which times are relative to.
        inputs: arrays of one run, to time files with.
        timing: seconds to time each file.
        convert: returns the quantized model of a recipe.
        suffix: suffix of the files, that of their format.
        runtime: where the files are timed, see `open_model`.
    """

    folder: Path
    float_file: Path
    inputs: Sequence[Array]
    timing: float
    convert: Callable[[Recipe], QuantizedModel]
    suffix: str = MODEL_SUFFIXES[0]
    runtime: str = NATIVE

    def write(self, recipe: Recipe, model: Quantized | None = None) -> Path:
        """Return the file of a recipe; written on the first call.

        Args:
            model: that of the recipe, if it is known already.
        """
        file = self.folder / f"{recipe_key(recipe)}{self.suffix}"
        if not file.exists():
            (model or self.convert(recipe)).export(file, verify=False)
        return file

    def speedups(self, files: Sequence[Path]) -> tuple[Ratio, ...]:
        """Time files against the float model and each other, in turns."""
        return measure_speedups(self.float_file, files, self.inputs, self.timing, self.runtime)


def file_bytes(file: Path) -> int:
    """Return the size of a file with its external data."""
    return sum(f.stat().st_size for f in open_file(file).parts)


def finalists(goals: TuneGoals, trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return the trials among which time decides; () if there are fewer than two."""
    if goals.smallest:
        return ()
    nearest = sorted(replace(goals, min_speedup=None).nearest(trials), key=goals.cost)
    limit = goals.cost(nearest[0]) * COST_MARGIN
    close = [t for t in nearest if goals.cost(t) <= limit][:MAX_FINALISTS]
    return tuple(close) if len(close) > 1 else ()


def time_finalists(
    goals: TuneGoals,
    trials: Sequence[Trial],
    retimed: Callable[[Sequence[Trial]], tuple[Trial, ...]],
) -> tuple[Trial, ...]:
    """Return the finalists with speed-ups from the same sessions; () if there are none.

    Args:
        retimed: times files against the float model, in turns.
    """
    contenders = finalists(goals, trials)
    return retimed(contenders) if contenders else ()


# Speed-up of files over the float model: the median of as many short sessions as the time allows.
#
# Within a session the interval is narrow, but memory placement and other load move the ratio of two
# files by about 5 % between sessions, and sometimes by 20 %. More sessions help, more runs in one
# do not: for a network of 0.1 ms the median of 15 sessions, taken in half a second, is off by 0.5
# %, and outliers do not move it. Large networks get the minimum number of sessions.


def measure_speedups(
    reference: Path,
    files: Sequence[Path],
    inputs: Sequence[Array],
    seconds: float,
    runtime: str = NATIVE,
) -> tuple[Ratio, ...]:
    """Return the speed-up of each file over the reference, timed in turns.

    Args:
        seconds: per file, in all sessions together.
        runtime: see `open_model`.
    """
    both, whole = [reference, *files], seconds * len(files)

    start, sessions = time.perf_counter(), list[Sequence[Ratio]]()
    each = whole / MAX_SESSIONS
    with track_task("timing"):
        while len(sessions) < MIN_SESSIONS or (
            len(sessions) < MAX_SESSIONS and time.perf_counter() - start < whole
        ):
            timing = time_files(
                both, inputs, seconds=each, least_rounds=MIN_ROUNDS, runtime=runtime
            )
            sessions.append(timing.ratios[1:])
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
