"""What is asked of a search, and how far a file is from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qtool.core.limits import Range, check_fields
from qtool.evaluation.metrics import CONFIDENCE
from qtool.search.archive import Trial
from qtool.search.judge import Score

NO_METRIC = 1e9
DEFAULT_DROP = 0.01
TIE = 0.02  # of the cost: what timing does not tell apart, however sure it seems
MAX_TIE = 0.1  # the most that it is said not to tell apart, where sessions differ
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

    def meets_accuracy(self, found: Trial) -> bool:
        """Whether a file loses no more than it may."""
        return not any(self._losses(found).values())

    def is_met(self, found: Trial) -> bool:
        return not self.misses(found)

    def misses(self, found: Trial) -> dict[str, float]:
        """Goal -> by what share of itself it is missed, of those that are."""
        costs = {
            "min_speedup": 0.0
            if self.min_speedup is None
            else 1 - found.speedup / self.min_speedup,
            "max_size": 0.0 if self.max_size is None else found.size / self.max_size - 1,
        }
        return {k: v for k, v in (self._losses(found) | costs).items() if v > 0}

    def _losses(self, found: Trial) -> dict[str, float]:
        lost, sqnr = found.score.worst_case_drop, found.score.sqnr_db
        drop = 0.0
        if self.max_drop is not None:
            over = NO_METRIC if lost is None else lost - self.max_drop
            drop = max(0.0, over / max(abs(self.max_drop), 1e-6))
        short = 0.0
        if self.min_sqnr is not None and sqnr is not None:
            short = max(0.0, (self.min_sqnr - sqnr) / max(abs(self.min_sqnr), 1.0))
        return {"max_drop": drop, "min_sqnr": short}

    def cost(self, found: Trial) -> float:
        return float(found.size) if self.smallest else 1 / found.speedup

    def nearest(self, evaluated: Sequence[Trial]) -> list[Trial]:
        """Those that keep every goal; where none does, those that are nearest to it."""
        far = [sum(self.misses(e).values()) for e in evaluated]
        return [e for e, f in zip(evaluated, far, strict=True) if f <= min(far)]

    def best(self, evaluated: Sequence[Trial]) -> Trial:
        """The nearest to the goals, and of those the cheapest; of alike ones that which has most in
        integers, and the most exact of those."""
        near = self.nearest(evaluated)
        first = min(near, key=self.cost)
        alike = [e for e in near if self._ties_with(e, first)]
        return min(alike, key=lambda e: (-e.share, e.score.noise))

    def _ties_with(self, found: Trial, first: Trial) -> bool:
        """Whether it may be as cheap as the cheapest, by the interval of its speed."""
        over = self.cost(found) / self.cost(first) - 1
        open_ = not self.smallest and found.speedup_high >= first.speedup
        return over <= TIE or (open_ and over <= MAX_TIE)

    def describe_misses(self, trial: Trial) -> list[str]:
        """Return a sentence for each goal that a file misses: what it reaches, and the goal."""
        missed = self.misses(trial)
        sentences = [self._drop_sentence(trial.score)] if "max_drop" in missed else []
        if "min_sqnr" in missed:
            sentences.append(f"SQNR is {trial.score.sqnr_db:.1f} dB, goal is {self.min_sqnr:g} dB")
        if "min_speedup" in missed:
            sentences.append(f"speed-up is {trial.speedup:.2f}x, goal is {self.min_speedup:g}x")
        if "max_size" in missed:
            sentences.append(f"size is {trial.size} bytes, goal is {self.max_size} bytes")
        return sentences

    def _drop_sentence(self, score: Score) -> str:
        drop, worst = score.drop, score.worst_case_drop
        if drop is None or worst is None or self.max_drop is None:
            return "no metric was measured; pass labels or an evaluation function"
        unit, mark = (100.0, " points") if score.percent else (1.0, "")
        change = f"{'loses' if drop >= 0 else 'gains'} {unit * abs(drop):.3g}{mark}"
        goal = f"goal is a loss of at most {unit * self.max_drop:.3g}{mark}"
        if drop > self.max_drop:
            return f"{score.metric} {change}, {goal}"
        return (
            f"{score.metric} {change}, but {score.samples} samples do not rule out a loss of "
            f"{unit * worst:.3g}{mark}; {goal}"
        )

    @property
    def max_noise(self) -> float | None:
        """The noise over signal that min_sqnr allows."""
        return None if self.min_sqnr is None else math.pow(10, -self.min_sqnr / 10)
