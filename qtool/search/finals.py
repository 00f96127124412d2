"""The finalists beside each other: what is chosen among near equals is timed in one session.

A file is timed beside float when it is evaluated. Both see the same machine then, but another load
may change what one gains over the other, and two files of the same kernels, timed minutes apart,
may differ by a tenth with narrow intervals. So those that might be the fastest run again, in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qtool.analysis.latency import Ratio
from qtool.search.archive import Evaluated
from qtool.search.goals import TuneGoals

__all__ = ["Beside", "finalists", "timed_anew"]

APART = 1.25  # of the least cost: what two sessions may differ by, and a little more
MOST = 6


@dataclass(frozen=True)
class Beside:
    """What files were found to be worth beside float, and so beside each other: speed and the ends
    of its interval."""

    keys: tuple[str, ...]
    speeds: tuple[tuple[float, float, float], ...]

    @classmethod
    def of(cls, found: Sequence[Evaluated], ratios: Sequence[Ratio]) -> Beside:
        return cls(tuple(e.key for e in found), tuple((r.median, r.low, r.high) for r in ratios))


def finalists(goals: TuneGoals, evaluated: Sequence[Evaluated]) -> tuple[Evaluated, ...]:
    """Those among which time decides; none where there is nothing to decide."""
    if goals.smallest:
        return ()
    near = sorted(goals.nearest(evaluated), key=goals.cost)
    alike = [e for e in near if goals.cost(e) <= goals.cost(near[0]) * APART][:MOST]
    return tuple(alike) if len(alike) > 1 else ()


def timed_anew(found: Sequence[Evaluated], beside: Beside) -> tuple[Evaluated, ...]:
    """The same files with the speeds of one session."""
    speeds = dict(zip(beside.keys, beside.speeds, strict=True))
    return tuple(
        replace(e, speedup=speed, speedup_low=low, speedup_high=high)
        for e in found
        for speed, low, high in [speeds[e.key]]
    )
