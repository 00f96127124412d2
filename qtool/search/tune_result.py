"""What a search has found: the model, how it keeps the goals, and why it is as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtool.core.formats import db, percent, size, table, times
from qtool.core.records import to_json
from qtool.planning.recipe import Recipe
from qtool.search.archive import Trial
from qtool.search.choices import SearchSpace
from qtool.search.cost_model import CostModel
from qtool.search.goals import TuneGoals
from qtool.search.pareto_front import non_dominated


@dataclass(frozen=True)
class GroupChoice:
    """What a group of layers got.

    share: of the predicted error that all have in the first model that was tried, this group's.
    gain_db: by how much the best model would be more exact with this group in float, and cost_us
    by how much slower; both None where it is in float.
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
class TuneResult:
    """The end of a search.

    best: what is delivered. reached: whether it keeps every goal; missed: where not, how far it is,
    in sentences. evaluated: all files that were run, in order. front: keys of those of which none
    other is both faster (smaller) and more exact. groups: what the best one's layers got.
    recipes: key -> recipe, of every file. unquantized: the key of the
    float model itself, where it was tried, or nothing. float_size,
    float_time: bytes and microseconds of the float model. agreement: correlations of what the
    additive model predicts with what was measured: dB of the error, and time. stopped: why before
    its end, if it was. notes: what could not be tried, in sentences. fresh, seconds: evaluations
    of this run, and what it took.
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
    unquantized: str
    float_size: int
    float_time: float
    agreement: tuple[float | None, float | None]
    stopped: str
    notes: tuple[str, ...]
    fresh: int
    seconds: float

    @property
    def recipe(self) -> Recipe:
        """The recipe of the best model: what `quantize` makes it from."""
        return self.recipes[self.best.key]

    @property
    def in_float(self) -> bool:
        """Whether the best is the float model itself: nothing is quantized."""
        return self.best.key == self.unquantized

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = to_json(self)
        found["recipes"] = {k: r.to_json() for k, r in self.recipes.items()}
        return found

    def __str__(self) -> str:
        parts = [self._verdict(), self._groups(), self._tried(), self._model()]
        return "\n\n".join(filter(None, parts))

    def _verdict(self) -> str:
        best = self.best
        speeds = f"({best.speedup_low:.2f} to {best.speedup_high:.2f})"
        sizes = f"{size(best.size)} of {size(self.float_size)}"
        metric = f"; {best.score.text}" if best.score.text else ""
        head = "every goal is kept" if self.reached else "not every goal is kept; the best found:"
        lines = [head, *self.missed]
        lines.append(
            f"{times(best.speedup)} as fast as float {speeds}, {sizes}, "
            f"{percent(best.share)} of the MACs in integers"
        )
        exact = best.score.sqnr_db is None
        outputs = "outputs without error" if exact else f"outputs at {db(best.score.sqnr_db)} dB"
        lines.append(outputs + metric)
        if self.in_float:
            lines.append(
                "this is the float model itself: nothing else that was tried keeps the goals"
            )
        if self.stopped:
            lines.append(f"stopped: {self.stopped}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

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
        head = ("layers", "op", "choice", "share of error", "in float", "and costs")
        if not any(g.share for g in self.groups):  # ended before errors were measured
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
                db(-10 * float(np.log10(e.predicted_noise))) if e.predicted_noise > 0 else "",
                e.score.text,
            )
            for e in self.evaluated
        ]
        head = ("file", "accuracy", "layers", "speed", "size", "dB", "predicted", "metric")
        return table(head, rows, align="lllrrrrl")

    def _model(self) -> str:
        names = ("error (dB)", "time")
        said = [
            f"{name} {value:.3f}"
            for name, value in zip(names, self.agreement, strict=True)
            if value is not None
        ]
        told = f"predicted and measured correlate: {', '.join(said)}; " if said else ""
        return (
            f"{told}{len(self.evaluated)} evaluations, {self.fresh} of them in this run, "
            f"{self.seconds:.0f} s"
        )


def _count_choices(choices: tuple[str, ...]) -> str:
    """How many groups have which choice."""
    names = dict.fromkeys(choices)
    return ", ".join(f"{choices.count(n)} {n}" for n in names)


def group_choices(
    space: SearchSpace, best: Trial, model: CostModel | None
) -> tuple[GroupChoice, ...]:
    """What each group got, and what it would gain and cost in float."""
    config = space.config_of(best.choices)
    shares = np.zeros(len(config)) if model is None else model.group_noise(space.default_config)
    found = []
    for i, group in enumerate(space.groups):
        gain = cost = None
        lifted = (*config[:i], len(group.choices) - 1, *config[i + 1 :])
        if model is not None and lifted != config and not space.is_float(lifted):
            noise, spent, _ = model.predict(np.array([config, lifted]))
            cost = float(spent[1] - spent[0])
            gain = float(10 * np.log10(noise[0] / noise[1])) if noise.min() > 0 else None
        share = float(shares[i] / (shares.sum() or 1.0))
        facts = (group.name, group.layers, group.op, group.macs, group.choices[config[i]])
        found.append(GroupChoice(*facts, share, gain, cost))
    return tuple(found)


def front_keys(evaluated: tuple[Trial, ...], smallest: bool) -> tuple[str, ...]:
    """Keys of the files that none beats in both ways, from the cheapest to the most exact."""
    cost = np.array([e.size if smallest else 1 / e.speedup for e in evaluated], np.float64)
    noise = np.array([e.score.noise for e in evaluated])
    return tuple(evaluated[i].key for i in non_dominated(cost, noise))
