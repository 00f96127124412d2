"""Result of a search: the best file, the goals it meets, and the precision of each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qtool.core.argument_names import argument
from qtool.core.number_texts import db, percent, quantity, share, size, table, times
from qtool.core.sqnr import decibels
from qtool.core.summary import Result, Summary
from qtool.evaluation.latency.interleaved_timing import Timing, speed_rows
from qtool.planning.recipe import Recipe
from qtool.plugins.search.archive import Trial
from qtool.plugins.search.choices import SearchSpace
from qtool.plugins.search.cost_model import CostModel
from qtool.plugins.search.goals import TuneGoals
from qtool.plugins.search.pareto_front import non_dominated


@dataclass(frozen=True)
class GroupChoice:
    """Precision of a group of layers in the best file.

    Attributes:
        name, layers, op, macs: name, layers, operator and MACs of the group.
        choice: its precision, a key of `CHOICES`.
        share: its share of the error predicted for the default precision of every group.
        gain_db, cost_us: predicted SQNR gain in dB, and additional microseconds, if this group ran
            in float as well; None if it does.
    """

    name: str
    layers: tuple[str, ...]
    op: str
    macs: int
    choice: str
    share: float
    gain_db: float | None
    cost_us: float | None


@dataclass(frozen=True)
class TuneResult(Result):
    """Result of a search.

    Attributes:
        best: the delivered file.
        reached: True if it meets every goal.
        missed: a sentence for each goal that it misses.
        evaluated: all evaluated files, in order.
        front: keys of the files on the Pareto front of cost (time or size) and error.
        groups: precision of each group of layers in the best file.
        recipes: recipe of every file, by key.
        float_size, float_time: bytes and microseconds of the float model.
        agreement: correlation of predictions of the cost model with measurements, of the error in
            dB and of the time; None if unknown.
        stopped: why the search ended early, or "".
        notes: what could not be evaluated, in sentences.
        fresh, seconds: evaluations and duration of this run.
        phase: phase of a decoder whose speed was searched for: "step" or "prompt"; "" for any other
            model.
        timings: the best file in the other phases, after float.
        timed_in: the runtime that files were timed in, with its version; "" for that of their
            format.
    """

    target: str
    goals: TuneGoals
    best: Trial
    reached: bool
    missed: tuple[str, ...]
    evaluated: tuple[Trial, ...]
    front: tuple[str, ...]
    groups: tuple[GroupChoice, ...]
    recipes: Mapping[str, Recipe]
    float_size: int
    float_time: float
    agreement: tuple[float | None, float | None]
    stopped: str
    notes: tuple[str, ...]
    fresh: int
    seconds: float
    phase: str = ""
    timings: tuple[Timing, ...] = ()
    timed_in: str = ""

    @property
    def recipe(self) -> Recipe:
        """Recipe of the best file, as `quantize` takes it."""
        return self.recipes[self.best.key]

    def summary(self, title: str = "tuned") -> Summary:
        """Return the best file in a few lines."""
        best = self.best
        interval = f"{best.speedup_low:.2f} to {best.speedup_high:.2f}"
        exact = best.score.sqnr_db is None
        place = f", in {self.timed_in}" if self.timed_in else ""
        rows = [
            ("size", f"{size(best.size)}, float {size(self.float_size)}"),
            (
                self.phase or "speed",
                f"{times(best.speedup)} as fast as float (95 % interval {interval}){place}",
            ),
            *((label, f"{text}{place}") for label, text in speed_rows(self.timings)),
            ("SQNR", "no output error" if exact else f"{db(best.score.sqnr_db)} dB"),
            ("metric", best.score.text),
            ("integer", f"{share(best.share)} of the MACs"),
            ("search", self._effort()),
            *(("missed", sentence) for sentence in self.missed),
        ]
        head = "all goals met" if self.reached else "goals missed; the best file"
        stopped = (f"stopped: {self.stopped}",) if self.stopped else ()
        notes = (*self._unset_goal(), *self.notes, *stopped)
        return Summary(title, head, tuple(row for row in rows if row[1]), notes)

    def _unset_goal(self) -> tuple[str, ...]:
        """Return what accuracy was asked for where the user did not say it."""
        goals, metric = self.goals, self.best.score.metric
        limit = goals.drop_limit(metric)
        if goals.max_drop is not None or limit is None or metric is None:
            return ()
        options = f"{argument('--max-drop')} or {argument('--min-sqnr')}"
        lost = f"{metric.name} may lose at most {metric.amount(limit)}"
        return (f"no goal for the accuracy was set, so {lost}; set one with {options}",)

    def _effort(self) -> str:
        layers = _count_choices(tuple(group.choice for group in self.groups))
        files = quantity(len(self.evaluated), "file")
        return f"{files} evaluated in {self.seconds:.0f} s; layers: {layers}"

    def details(self) -> str:
        """Return the precision of each group of layers, and all evaluated files."""
        return "\n\n".join(filter(None, [self._groups(), self._tried(), self._model()]))

    def _groups(self) -> str:
        rows = [
            (
                g.name,
                g.op,
                g.choice,
                percent(g.share, 1),
                "" if g.gain_db is None else f"{g.gain_db:+.2f} dB",
                "" if g.cost_us is None else f"{g.cost_us:+.0f} us",
            )
            for g in self.groups
        ]
        head = ("layers", "op", "precision", "share of error", "gain in float", "cost in float")
        if not any(g.share for g in self.groups):  # stopped before the errors were measured
            return table(head[:3], [row[:3] for row in rows], align="lll")
        return table(head, rows, align="lllrrr")

    def _tried(self) -> str:
        rows = [
            (
                f"{'*' if e.key == self.best.key else ''}{e.number}",
                e.accuracy,
                _count_choices(e.choices),
                times(e.speedup),
                size(e.size),
                db(e.score.sqnr_db),
                db(decibels(1.0, e.predicted_noise)) if e.predicted_noise > 0 else "",
                e.score.text,
            )
            for e in self.evaluated
        ]
        head = ("file", "accuracy", "precisions", "speed-up", "size", "SQNR", "predicted", "metric")
        return table(head, rows, align="lllrrrrl")

    def _model(self) -> str:
        names = ("error (dB)", "time")
        correlations = [
            f"{name} {value:.3f}"
            for name, value in zip(names, self.agreement, strict=True)
            if value is not None
        ]
        evaluations = quantity(len(self.evaluated), "evaluation")
        parts = [f"{evaluations}, {self.fresh} of them in this run"]
        if correlations:
            listed = ", ".join(correlations)
            parts.insert(0, f"correlation of predictions with measurements: {listed}")
        return f"{'; '.join(parts)}, {self.seconds:.0f} s"


def _count_choices(choices: tuple[str, ...]) -> str:
    """Return how many groups have each precision, as text."""
    names = dict.fromkeys(choices)
    return ", ".join(f"{choices.count(n)} {n}" for n in names)


def group_choices(
    space: SearchSpace, best: Trial, model: CostModel | None
) -> tuple[GroupChoice, ...]:
    """Return the precision of each group, and its predicted gain and cost in float."""
    config = space.config_of(best.choices)
    shares = np.zeros(len(config)) if model is None else model.group_noise(space.default_config)
    rows = []
    for i, group in enumerate(space.groups):
        gain = cost = None
        in_float = (*config[:i], len(group.choices) - 1, *config[i + 1 :])
        if model is not None and in_float != config and not space.is_float(in_float):
            noise, spent, _ = model.predict(np.array([config, in_float]))
            cost = float(spent[1] - spent[0])
            gain = decibels(*noise.tolist()) if noise.min() > 0 else None
        share = float(shares[i] / (shares.sum() or 1.0))
        facts = (group.name, group.layers, group.op, group.macs, group.choices[config[i]])
        rows.append(GroupChoice(*facts, share, gain, cost))
    return tuple(rows)


def front_keys(evaluated: tuple[Trial, ...], smallest: bool) -> tuple[str, ...]:
    """Return the keys of the Pareto front, from the cheapest to the most accurate."""
    cost = np.array([e.size if smallest else 1 / e.speedup for e in evaluated], np.float64)
    noise = np.array([e.score.noise for e in evaluated])
    return tuple(evaluated[i].key for i in non_dominated(cost, noise))
