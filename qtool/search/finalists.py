"""Final timing: files that might be the fastest are timed together, in the same sessions.

Each file is timed against the float model when it is evaluated. Under another load the speed-up may
differ: two files with the same kernels, timed minutes apart, may differ by 10 % with narrow
intervals. So the candidates for the fastest file run again, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qtool.core.store import Store
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.search.archive import Trial
from qtool.search.goals import TuneGoals

COST_MARGIN = 1.25  # of the least cost: more than sessions differ by
MAX_FINALISTS = 6


@dataclass(frozen=True)
class FinalSpeeds:
    """Speed-ups over float of the finalists: median, low and high end of the interval."""

    speeds: tuple[tuple[float, float, float], ...]

    @classmethod
    def from_ratios(cls, ratios: Sequence[Ratio]) -> FinalSpeeds:
        return cls(tuple((r.median, r.low, r.high) for r in ratios))


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
    store_of: Callable[[str], Store],
    time_trials: Callable[[Sequence[Trial]], Sequence[Ratio]],
) -> tuple[Trial, ...]:
    """Return the finalists with speed-ups from the same sessions; () if there are none.

    Args:
        store_of: returns the store of a key, which keeps the speed-ups.
        time_trials: times files against the float model, in turns.
    """
    contenders = finalists(goals, trials)
    if not contenders:
        return ()
    store = store_of(" ".join(e.key for e in contenders))
    final = store.load_or_make(
        "finals", FinalSpeeds, lambda: FinalSpeeds.from_ratios(time_trials(contenders))
    )
    return tuple(
        replace(e, speedup=speed, speedup_low=low, speedup_high=high)
        for e, (speed, low, high) in zip(contenders, final.speeds, strict=True)
    )
