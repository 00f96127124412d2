"""Goals and options of a mixed-precision search, and the choice of the best file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from qtool.core.number_texts import quantity
from qtool.core.search_options import SearchGoals
from qtool.core.sqnr import NO_SIGNAL_DB
from qtool.metrics.metric import Metric, check_drop, default_drop
from qtool.plugins.search.choices import FLOAT
from qtool.plugins.search.judge import Score, Trial

NO_METRIC = 1e9  # miss of max_drop if no metric was measured
TIE = 0.02  # relative cost difference that timing cannot resolve, whatever the interval
MOST_MORE = 100  # times as many samples, that are named as enough
SMALLER = 0.9  # of the float file's size, from which a file that is not faster is of use
MAX_TIE = 0.1  # largest difference that a wide interval still makes a tie


class TuneGoals(SearchGoals):  # its docstring, too
    def drop_limit(self, metric: Metric | None) -> float | None:
        """Return the largest loss of a metric; None if there is no such goal.

        Raises:
            OptionError: max_drop allows every loss of a share.
        """
        percent = metric is not None and metric.percent
        if self.max_drop is not None:
            check_drop(self.max_drop, percent)
            return self.max_drop
        if self.min_sqnr is not None:
            return None
        return default_drop(percent, None if metric is None else metric.values[0])

    def meets_accuracy(self, trial: Trial) -> bool:
        """Return True if a file meets max_drop and min_sqnr."""
        return not {"max_drop", "min_sqnr"} & set(self.misses(trial))

    def is_met(self, trial: Trial) -> bool:
        """Return True if a file meets every goal."""
        return not self.misses(trial)

    def misses(self, trial: Trial) -> dict[str, float]:
        """Return the relative distance to each goal that a file misses, by name."""
        costs = {
            "min_speedup": 0.0
            if self.min_speedup is None
            else 1 - trial.speedup / self.min_speedup,
            "max_size": 0.0 if self.max_size is None else trial.size / self.max_size - 1,
        }
        return {k: v for k, v in (self._accuracy_misses(trial) | costs).items() if not v <= 0}

    def _accuracy_misses(self, trial: Trial) -> dict[str, float]:
        worst, sqnr = trial.score.worst_case_drop, trial.score.sqnr_db
        limit, drop = self.drop_limit(trial.score.metric), 0.0
        if limit is not None:
            over = NO_METRIC if worst is None or math.isnan(worst) else worst - limit
            drop = max(0.0, over / max(abs(limit), 1e-6))
        short = 0.0
        if self.min_sqnr is not None and sqnr is not None:
            short = (self.min_sqnr - sqnr) / max(abs(self.min_sqnr), 1.0)
        return {"max_drop": drop, "min_sqnr": short}

    def cost(self, trial: Trial) -> float:
        """Return what is minimized: bytes, or time relative to the float model."""
        return float(trial.size) if self.smallest else 1 / trial.speedup

    def nearest(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials that meet every goal; if none does, those nearest to it."""
        distances = [sum(self.misses(t).values()) for t in trials]
        return [t for t, d in zip(trials, distances, strict=True) if d <= min(distances)]

    def gains(self, trial: Trial, float_size: int) -> bool:
        """Return whether a file is of use: mostly quantized, or not slower than the float file, or
        smaller by a tenth.

        Args:
            trial: the file.
            float_size: bytes of the float file.
        """
        smaller = trial.size < SMALLER * float_size
        mostly_float = 2 * trial.choices.count(FLOAT) > len(trial.choices)
        return not mostly_float or smaller or trial.speed.high >= 1

    def best(self, trials: Sequence[Trial], float_size: int = 0) -> Trial:
        """Return the cheapest trial that meets the goals. Without one, the cheapest of those that
        meet them as measured, if not by the bound of an interval; else the nearest to the goals.

        Files that gain nothing over the float file are left out, unless there are no others. Among
        trials of equal cost: the largest integer share, then the smallest error.
        """
        trials = [t for t in trials if self.gains(t, float_size)] or trials
        met = [t for t in trials if self.is_met(t)]
        nearest = met or [t for t in trials if self._is_met_as_measured(t)] or self.nearest(trials)
        cheapest = min(nearest, key=self.cost)
        ties = [t for t in nearest if self._ties_with(t, cheapest)]
        return min(ties, key=lambda t: (-t.share, t.score.noise))

    def _ties_with(self, trial: Trial, cheapest: Trial) -> bool:
        """Return True if a trial may be as cheap as the cheapest, by its speed-up interval."""
        over = self.cost(trial) / self.cost(cheapest) - 1
        overlaps = not self.smallest and trial.speed.high >= cheapest.speedup
        return over <= TIE or (overlaps and over <= MAX_TIE)

    def _is_met_as_measured(self, trial: Trial) -> bool:
        known = trial.score.metric
        metric = known and replace(known, intervals=(None, None))
        return self.is_met(replace(trial, score=replace(trial.score, metric=metric)))

    def describe_misses(self, trial: Trial, float_size: int = 0) -> list[str]:
        """Return a sentence for each goal that a file misses: what it reaches, and the goal."""
        missed = self.misses(trial)
        sentences = [self._drop_sentence(trial.score)] if "max_drop" in missed else []
        if "min_sqnr" in missed:
            sqnr, noise = trial.score.sqnr_db, trial.score.noise
            silent = sqnr == NO_SIGNAL_DB and not noise
            text = "could not be measured" if silent else f"is {sqnr:.1f} dB"
            sentences.append(f"SQNR {text}, goal is {self.min_sqnr:g} dB")
        if "min_speedup" in missed:
            sentences.append(f"speed-up is {trial.speedup:.2f}x, goal is {self.min_speedup:g}x")
        if "max_size" in missed:
            sentences.append(f"size is {trial.size} bytes, goal is {self.max_size} bytes")
        if not self.gains(trial, float_size):
            text = f"it is slower than float ({trial.speedup:.2f}x) and not much smaller"
            sentences.append(text)
        return sentences

    def _drop_sentence(self, score: Score) -> str:
        metric, worst, limit = score.metric, score.worst_case_drop, self.drop_limit(score.metric)
        if metric is None or worst is None or limit is None or math.isnan(worst):
            return "no metric was measured; pass labels or an evaluation function"
        drop = metric.drops[1]
        word = ("loses", "gains") if metric.higher_is_better else ("rises by", "falls by")
        change = f"{word[drop < 0]} {metric.amount(abs(drop))}"
        goal = f"goal is a loss of at most {metric.amount(limit)}"
        if drop > limit:
            return f"{metric.name} {change}, {goal}"
        samples, enough = quantity(score.samples, "sample"), _enough_samples(score, limit)
        proof = f"; some {enough:,} would prove this one" if enough else ""
        return (
            f"{metric.name} {change}, but {samples} cannot rule out a loss of "
            f"{metric.amount(worst)}; {goal}{proof}"
        )

    @property
    def max_noise(self) -> float | None:
        """Noise-to-signal ratio that min_sqnr allows."""
        return None if self.min_sqnr is None else math.pow(10, -self.min_sqnr / 10)


def _enough_samples(score: Score, limit: float) -> int:
    """Return the number of samples from which a drop below the limit is proved if it stays as it
    is, to two digits; 0 where none is enough, or more than `MOST_MORE` times as many. The width of
    an interval falls with their root."""
    assert score.drop is not None
    assert score.worst_case_drop is not None
    if score.drop >= limit:
        return 0
    count = score.samples * ((score.worst_case_drop - score.drop) / (limit - score.drop)) ** 2
    if count > MOST_MORE * score.samples:
        return 0
    step = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return int(math.ceil(count / step) * step)
