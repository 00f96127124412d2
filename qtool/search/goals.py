"""What is asked of a search, and how far a file is from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qtool.core.limits import Range, check_fields
from qtool.evaluation.metrics import CONFIDENCE
from qtool.search.archive import Evaluated

NONE = 1e9
DEFAULT_DROP = 0.01
ALIKE = 0.02  # of the cost: what timing does not tell apart, however sure it seems
UNSURE = 0.1  # the most that it is said not to tell apart, where sessions differ
RANGES = {
    "max_drop": Range(),  # negative: the metric has to gain
    "min_sqnr": Range(),
    "min_speedup": Range(low=0, low_open=True),
    "max_size": Range(low=1),
    "confidence": Range(low=0, high=1, high_open=True),
}


@dataclass(frozen=True)
class TuneGoals:
    """What has to be kept; what is kept best beyond it is speed, or size.

    Where nothing bounds what may be lost, max_drop is a hundredth: a point of a share.

    max_drop: the most that the metric may lose, in its unit (0.01 of top-1 is one point): the end
    of the interval of the drop decides, where the metric is a mean over samples; confidence is
    that of the interval.
    min_sqnr: dB of the outputs. min_speedup: over float. max_size: bytes of the file.
    smallest: of the files that keep all that, the smallest is wanted and not the fastest.

    Raises:
        OptionError: a goal is NaN, infinite or out of its range.
    """

    max_drop: float | None = None
    min_sqnr: float | None = None
    min_speedup: float | None = None
    max_size: int | None = None
    smallest: bool = False
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        check_fields(self, RANGES)

    @property
    def bounded(self) -> TuneGoals:
        """These goals, with a bound on what may be lost where they have none."""
        if self.max_drop is None and self.min_sqnr is None:
            return replace(self, max_drop=DEFAULT_DROP)
        return self

    def faithful(self, found: Evaluated) -> bool:
        """Whether a file loses no more than it may."""
        return not any(self._losses(found).values())

    def kept(self, found: Evaluated) -> bool:
        return not self.distances(found)

    def distances(self, found: Evaluated) -> dict[str, float]:
        """Goal -> by what share of itself it is missed, of those that are."""
        costs = {
            "min_speedup": 0.0
            if self.min_speedup is None
            else 1 - found.speedup / self.min_speedup,
            "max_size": 0.0 if self.max_size is None else found.size / self.max_size - 1,
        }
        return {k: v for k, v in (self._losses(found) | costs).items() if v > 0}

    def _losses(self, found: Evaluated) -> dict[str, float]:
        lost, sqnr = found.score.surely, found.score.sqnr_db
        drop = 0.0
        if self.max_drop is not None:
            over = NONE if lost is None else lost - self.max_drop
            drop = max(0.0, over / max(abs(self.max_drop), 1e-6))
        short = 0.0
        if self.min_sqnr is not None and sqnr is not None:
            short = max(0.0, (self.min_sqnr - sqnr) / max(abs(self.min_sqnr), 1.0))
        return {"max_drop": drop, "min_sqnr": short}

    def cost(self, found: Evaluated) -> float:
        return float(found.size) if self.smallest else 1 / found.speedup

    def nearest(self, evaluated: Sequence[Evaluated]) -> list[Evaluated]:
        """Those that keep every goal; where none does, those that are nearest to it."""
        far = [sum(self.distances(e).values()) for e in evaluated]
        return [e for e, f in zip(evaluated, far, strict=True) if f <= min(far)]

    def best(self, evaluated: Sequence[Evaluated]) -> Evaluated:
        """The nearest to the goals, and of those the cheapest; of alike ones that which has most in
        integers, and the most exact of those."""
        near = self.nearest(evaluated)
        first = min(near, key=self.cost)
        alike = [e for e in near if self._as_cheap(e, first)]
        return min(alike, key=lambda e: (-e.share, e.score.noise))

    def _as_cheap(self, found: Evaluated, first: Evaluated) -> bool:
        """Whether it may be as cheap as the cheapest, by the interval of its speed."""
        over = self.cost(found) / self.cost(first) - 1
        open_ = not self.smallest and found.speedup_high >= first.speedup
        return over <= ALIKE or (open_ and over <= UNSURE)

    def told(self, found: Evaluated) -> list[str]:
        """How far a file is from each goal that it misses, in sentences."""
        missed, said = self.distances(found), []
        score = found.score
        unit, mark = (100.0, " points") if score.percent else (1.0, "")
        if "max_drop" in missed and self.max_drop is not None:
            if score.drop is None or score.surely is None:
                said.append("no metric was measured: give labels, or a function")
            elif score.drop > self.max_drop:
                said.append(
                    f"it loses {unit * score.drop:.3g}{mark} of {score.metric}, "
                    f"{unit * (score.drop - self.max_drop):.3g} more than allowed"
                )
            else:
                lost = "loses" if score.drop >= 0 else "gains"
                said.append(
                    f"it {lost} {unit * abs(score.drop):.3g}{mark} of {score.metric}, but "
                    f"{score.samples} samples do not rule out {unit * score.surely:.3g}{mark}, "
                    f"{unit * (score.surely - self.max_drop):.3g} more than allowed"
                )
        if "min_sqnr" in missed and self.min_sqnr is not None and score.sqnr_db is not None:
            short = self.min_sqnr - score.sqnr_db
            said.append(f"its outputs have {score.sqnr_db:.1f} dB, {short:.1f} too few")
        if "min_speedup" in missed and self.min_speedup is not None:
            short = self.min_speedup - found.speedup
            said.append(f"it runs {found.speedup:.2f}x as fast as float, {short:.2f} too slow")
        if "max_size" in missed and self.max_size is not None:
            over = found.size - self.max_size
            said.append(f"it has {found.size} bytes, {over} too many")
        return said

    @property
    def noise(self) -> float | None:
        """The noise over signal that min_sqnr allows."""
        return None if self.min_sqnr is None else math.pow(10, -self.min_sqnr / 10)
