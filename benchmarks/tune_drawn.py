"""Rules for the next evaluation of the front, on synthetic problems.

    python benchmarks/tune_drawn.py [--truths 60] [--first 1000]

Ten layers, each static or float. The search's model knows errors, times and what it costs where
codes meet floats; the truth has other factors for each, and what is not additive: pairs of layers,
and every file by itself, of three sizes. One evaluation times a file to 1.5 %. Nothing is made or
timed, so that a rule can be chosen here and be judged elsewhere (tune_front.py).
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from qtool.search.archive import Trial
from qtool.search.cost_model import fit_scales
from qtool.search.expected_improvement import most_promising
from qtool.search.goals import TuneGoals
from qtool.search.judge import Score
from qtool.search.next_candidate import Observation, next_candidate
from qtool.search.pareto_front import candidates, hypervolume, non_dominated, pareto_front

LAYERS, EVALUATIONS = 10, 20
SIZES = ((0.01, 0.15), (0.02, 0.3), (0.04, 0.6))  # of what is not additive: of the time, and dB
ONCE = 0.015  # of the time: what one session is wrong by
HOPE = (0.97, 0.5)  # of the time, and dB: by how much better than predicted a file may well be
SPACE = SimpleNamespace(
    groups=[SimpleNamespace(choices=("static", "float"))] * LAYERS, is_float=all
)
GOALS = TuneGoals(max_drop=0.01)

Rule = Callable[[Any, Sequence[Observation], TuneGoals], "tuple[int, ...] | None"]


@dataclass(frozen=True, eq=False)
class Drawn:
    """As `CostModel`, of layers in a row."""

    errors: np.ndarray
    gains: np.ndarray
    edge: float
    error_scales: np.ndarray
    time_scale: float = 1.0
    float_time: float = 100.0
    float_size: float = 1.0
    items: ClassVar = SimpleNamespace(space=SPACE)

    def predict(self, configs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        codes = 1 - configs
        time = self.edge * np.abs(np.diff(codes, axis=1)).sum(1) - codes @ self.gains
        noise = codes @ (self.errors * self.error_scales)
        return noise, self.float_time + self.time_scale * time, np.zeros(len(codes))

    def shares(self, config: Sequence[int]) -> np.ndarray:
        return (1 - np.array(config)) * self.errors * self.error_scales


EVERY = np.array(list(itertools.product((0, 1), repeat=LAYERS)))


def drawn(number: int, size: tuple[float, float]) -> tuple[Any, np.ndarray, np.ndarray]:
    """A model, and the true noise and time of all files."""
    draw = np.random.default_rng(number)
    errors, gains = 10 ** draw.uniform(-4, -1.5, LAYERS), draw.lognormal(0, 0.8, LAYERS)
    gains *= 100 * draw.uniform(0.2, 0.6) / gains.sum()
    gains = np.where(draw.random(LAYERS) < 0.2, -gains / 2, gains)  # some are slower in integers
    model = Drawn(errors, gains, draw.uniform(0.5, 3), np.ones(LAYERS))
    real = replace(
        model,
        errors=errors * np.exp(draw.normal(0, 0.2, LAYERS)),
        gains=gains * np.exp(draw.normal(0, 0.25, LAYERS)),
        edge=model.edge * draw.lognormal(0, 0.2),
    )
    noise, time, _ = real.predict(EVERY)
    beyond = []
    for _ in size:
        pairs = np.triu(draw.normal(size=(LAYERS, LAYERS)), 1)
        found = np.einsum("ni,nj,ij->n", EVERY - 0.5, EVERY - 0.5, pairs)
        beyond.append(0.95 * found / found.std() + 0.3 * draw.normal(size=len(EVERY)))
    return model, noise * 10 ** (size[1] / 10 * beyond[1]), time * np.exp(size[0] * beyond[0])


def hopeful(model: Any, seen: Sequence[Observation], goals: TuneGoals) -> tuple[int, ...] | None:
    """The file that adds most where it is a little better than predicted, for comparison."""
    known = candidates(model, False, {s.config for s in seen})
    costs = np.array([s.cost for s in seen])
    levels = 10 * np.log10(np.array([s.trial.score.noise for s in seen]))
    order = non_dominated(known.time, known.noise)
    times, predicted = known.time[order], 10 * np.log10(known.noise[order])
    worst = (
        float(max(costs.max(), times.max())) * 1.01,
        float(max(levels.max(), predicted.max())) + 1,
    )
    added = [
        hypervolume(np.append(costs, t * HOPE[0]), np.append(levels, p - HOPE[1]), worst)
        for t, p in zip(times, predicted, strict=True)
    ]
    return known.config(int(order[np.argmax(added)]))


def share(number: int, size: tuple[float, float], rule: Rule) -> float:
    """Of the true hypervolume up to float, that of one search."""
    raw, noise, time = drawn(number, size)
    luck = np.random.default_rng(number)
    seen: list[Observation] = []

    def evaluate(config: tuple[int, ...], said: tuple[float, float]) -> None:
        place = int("".join(map(str, config)), 2)
        cost, loss = time[place] * np.exp(ONCE * luck.standard_normal()), noise[place]
        score = Score(450, -10 * np.log10(loss), loss, "top-1", True, 1.0, 1.0, 0.0, 0.0, 0.0)
        speed = raw.float_time / cost
        facts = (speed, speed, speed, 1, 0.5, 1.0, *said)
        found = Trial(str(place), len(seen) + 1, "fast", (), score, *facts)
        seen.append(Observation(config, found, cost))

    evaluate((0,) * LAYERS, (0.0, 0.0))
    while len(seen) < EVALUATIONS:
        configs, costs = [s.config for s in seen], [s.cost for s in seen]
        noises = [s.trial.score.noise for s in seen]
        model: Any = fit_scales(raw, configs, noises, costs)
        known = pareto_front(model)
        place = next_candidate(known, seen, GOALS)
        config = rule(model, seen, GOALS) if place is None else known.config(place)
        assert config is not None
        said = model.predict(np.array([config]))
        evaluate(config, (float(said[0][0]), float(said[1][0])))
    places = [int(s.trial.key) for s in seen]
    levels = 10 * np.log10(noise[:-1])  # the last is the float model
    worst = raw.float_time, float(levels.max()) + 1
    return hypervolume(time[places], levels[places], worst) / hypervolume(time[:-1], levels, worst)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truths", type=int, default=60)
    parser.add_argument("--first", type=int, default=1000)
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.truths)
    for size in SIZES:
        for name, rule in (("hopeful", hopeful), ("expected", most_promising)):
            found = np.array([share(n, size, rule) for n in numbers])
            print(
                f"{size[0]:.0%}, {size[1]} dB, {name:8}: median {np.median(found):.2%}, least "
                f"{found.min():.1%}; {(found >= 0.99).sum()} of {len(found)} reach 99%",
                flush=True,
            )


if __name__ == "__main__":
    main()
