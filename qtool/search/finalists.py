"""The finalists beside each other: what is chosen among near equals is timed in the same sessions.

A file is timed beside float when it is evaluated. Both see the same machine then, but another load
may change what one gains over the other, and two files of the same kernels, timed minutes apart,
may differ by a tenth with narrow intervals. So those that might be the fastest run again, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qtool.core.store import Store
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.search.archive import Trial
from qtool.search.goals import TuneGoals

COST_MARGIN = 1.25  # of the least cost: what two sessions may differ by, and a little more
MAX_FINALISTS = 6


@dataclass(frozen=True)
class FinalSpeeds:
    """Speeds beside float, and so beside each other, with the ends of their intervals."""

    speeds: tuple[tuple[float, float, float], ...]

    @classmethod
    def from_ratios(cls, ratios: Sequence[Ratio]) -> FinalSpeeds:
        return cls(tuple((r.median, r.low, r.high) for r in ratios))


def finalists(goals: TuneGoals, evaluated: Sequence[Trial]) -> tuple[Trial, ...]:
    """Those among which time decides; none where there is nothing to decide."""
    if goals.smallest:
        return ()
    near = sorted(replace(goals, min_speedup=None).nearest(evaluated), key=goals.cost)
    alike = [e for e in near if goals.cost(e) <= goals.cost(near[0]) * COST_MARGIN][:MAX_FINALISTS]
    return tuple(alike) if len(alike) > 1 else ()


def time_finalists(
    goals: TuneGoals,
    evaluated: Sequence[Trial],
    store_of: Callable[[str], Store],
    timed: Callable[[Sequence[Trial]], Sequence[Ratio]],
) -> tuple[Trial, ...]:
    """The finalists with speeds of the same sessions, which the archive keeps; none where there is
    nothing to decide.

    Args:
        store_of: a place for what holds under a key. timed: files beside float, in turns.
    """
    found = finalists(goals, evaluated)
    if not found:
        return ()
    store = store_of(" ".join(e.key for e in found))
    beside = store.load_or_make(
        "finals", FinalSpeeds, lambda: FinalSpeeds.from_ratios(timed(found))
    )
    return tuple(
        replace(e, speedup=speed, speedup_low=low, speedup_high=high)
        for e, (speed, low, high) in zip(found, beside.speeds, strict=True)
    )
