"""Pareto front of the cost model: configurations that no other one dominates in cost and error.

The problem is a multiple-choice knapsack with costs between neighbouring layers. A small space is
enumerated. A large one is swept: for each price of an error (a Lagrange multiplier), local search
changes single groups and runs of neighbouring groups to minimize cost + price * error, many moves
at a time. All configurations tried at any price are candidates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from qtool.core.types import Array
from qtool.plugins.search.archive import Trial
from qtool.plugins.search.choices import Config, Group
from qtool.plugins.search.cost_model import CostModel
from qtool.plugins.search.goals import TuneGoals

EXHAUSTIVE_LIMIT = 2**14  # configurations, for enumeration
PRICES = 24
ROUNDS = 40
RUNS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MIN_GAIN = 0.01  # relative cost saving that is worth an evaluation
NOISE_STEP = 4.0  # factor (6 dB) to lower the noise by, until a file is accurate enough
NOISE_MARGIN = 0.9  # share of the allowed noise to aim at
NOISE_FLOOR = 1e-9  # -90 dB: less counts as no noise


@dataclass(frozen=True, eq=False)
class Candidates:
    """Configurations with their predictions.

    Attributes:
        configs: [n, groups]; on a front, from the cheapest to the most accurate.
        noise, time, size: [n] noise-to-signal ratio, microseconds and bytes.
        exhaustive: True if all configurations of the space were enumerated.
    """

    configs: Array
    noise: Array
    time: Array
    size: Array
    exhaustive: bool

    def config(self, number: int) -> Config:
        return tuple(int(c) for c in self.configs[number])


def pareto_front(model: CostModel, by_size: bool = False) -> Candidates:
    """Return the configurations that no other one dominates by the predictions of the model.

    Args:
        by_size: the cost is bytes, not time.
    """
    known = _candidates(model, by_size)
    order = non_dominated(known.size if by_size else known.time, known.noise)
    return Candidates(
        known.configs[order],
        known.noise[order],
        known.time[order],
        known.size[order],
        known.exhaustive,
    )


def _candidates(model: CostModel, by_size: bool) -> Candidates:
    """Return the configurations that the Pareto front is taken from, in no order."""
    groups = model.items.space.groups
    counts = [len(g.choices) for g in groups]
    few = float(np.prod([float(c) for c in counts])) <= EXHAUSTIVE_LIMIT
    every = itertools.product(*map(range, counts))
    tried = np.array(list(every)) if few else _sweep_prices(model, by_size)
    is_float = model.items.space.is_float
    tried = tried[[not is_float(tuple(row)) for row in tried.tolist()]]
    return Candidates(tried, *model.predict(tried), few)


def non_dominated(cost: Array, noise: Array) -> Array:
    """Return the indices of the points that no other dominates, by rising cost and falling noise.

    Of equal points the first one is kept.
    """
    order = np.lexsort((noise, cost))
    least = np.minimum.accumulate(np.concatenate([[np.inf], noise[order][:-1]]))
    front: Array = order[noise[order] < least]
    return front


def _sweep_prices(model: CostModel, by_size: bool) -> Array:
    """Return all configurations tried in the sweep over prices.

    Neighbours are neighbours in order of computation; the search for a price starts at the optimum
    of the previous one.
    """
    space = model.items.space
    names = list(dict.fromkeys(name for g in space.groups for name in g.choices))
    pure = np.array([space.config(name) for name in names])
    noise, time, size = model.predict(pure)
    cost = size if by_size else time
    span = float(np.ptp(cost)) / max(float(np.ptp(noise)), 1e-30)
    moves, tried, current = _moves(space.groups, names), [pure], pure[cost.argmin()]
    for price in span * np.logspace(-2, 5, PRICES):
        for _ in range(ROUNDS):
            around = np.concatenate([current[None], np.where(moves < 0, current, moves)])
            tried.append(around)
            noise, time, size = model.predict(around)
            best = int(((size if by_size else time) + price * noise).argmin())
            if not best:
                break
            current = around[best]
    configs: Array = np.unique(np.concatenate(tried), axis=0)
    return configs


def _moves(groups: Sequence[Group], names: Sequence[str]) -> Array:
    """Return [moves, groups] choice of each group after a move, -1 for no change: every choice for
    every run of groups that have it."""
    count = len(groups)
    choices = np.array(
        [[g.choices.index(n) if n in g.choices else -1 for g in groups] for n in names]
    )
    places = np.arange(count)
    runs = [
        (places >= start) & (places < start + length)
        for length in RUNS
        for start in range(count - length + 1)
    ]
    return np.concatenate([np.where(np.array(runs), row, -1) for row in choices])


# The next configuration to evaluate for the goals: on the Pareto front, or with less in float.


@dataclass(frozen=True)
class Observation:
    """An evaluated configuration, with its cost in the unit of the cost model."""

    config: Config
    trial: Trial
    cost: float


def next_candidate(
    front: Candidates,
    observations: Sequence[Observation],
    goals: TuneGoals,
    refused: Collection[Config] = (),
) -> int | None:
    """Return the index of the cheapest configuration that may meet the accuracy goals, or None.

    The noise is bisected between the smallest that missed the goals and the largest that met them.
    None if no configuration is worth an evaluation.

    Args:
        front: as predicted by the corrected model.
        refused: configurations that cannot be converted.
    """
    done = {s.config for s in observations} | set(refused)
    open_ = [i for i in range(len(front.configs)) if front.config(i) not in done]
    cost = front.size if goals.smallest else front.time
    good = [s for s in observations if goals.meets_accuracy(s.trial)]
    noises = [s.trial.score.noise for s in observations if not goals.meets_accuracy(s.trial)]
    limit = min(noises, default=math.inf)
    cost_limit = min((s.cost for s in good), default=math.inf) * (1 - MIN_GAIN)
    worth = [i for i in open_ if front.noise[i] < limit and cost[i] < cost_limit]
    if not worth:
        return None
    most = max((s.trial.score.noise for s in good), default=0.0)
    if noises and good:
        aim = math.sqrt(max(most, NOISE_FLOOR) * limit)
    elif noises:
        aim = limit / NOISE_STEP ** len(noises)
    else:
        aim = math.inf
    if goals.max_noise is not None and len(observations) < 2 * len(noises) + 2:
        allowed = goals.max_noise * NOISE_MARGIN
        aim = allowed if goals.max_drop is None else min(aim, allowed)
    exact = [i for i in worth if front.noise[i] <= aim]
    return min(exact, key=lambda i: cost[i]) if exact else min(worth, key=lambda i: front.noise[i])


def quantize_more(
    model: CostModel,
    observations: Sequence[Observation],
    goals: TuneGoals,
    refused: Collection[Config] = (),
) -> Config | None:
    """Return the cheapest configuration that meets the goals with fewer groups in float, or None.

    Groups are quantized again, those of least noise first, up to half of the way (in dB) to the
    noise that missed the goals. Files with many boundaries between integers and floats are often
    slower than predicted. None if the configuration was evaluated before.
    """
    good = [s for s in observations if goals.meets_accuracy(s.trial)]
    bad = [s.trial.score.noise for s in observations if not goals.meets_accuracy(s.trial)]
    if not good or not bad:
        return None
    best = min(good, key=lambda s: s.cost)
    (noise,) = model.predict(np.array([best.config]))[0]
    allowed = noise * math.sqrt(min(bad) / max(best.trial.score.noise, NOISE_FLOOR))

    def quantize(config: Config, group: int) -> tuple[Config, float]:
        changed = (*config[:group], 0, *config[group + 1 :])
        return changed, float(model.predict(np.array([changed]))[0][0])

    config = best.config
    changed = [g for g, choice in enumerate(config) if choice]
    for group in sorted(changed, key=lambda g: quantize(best.config, g)[1]):
        fewer, noise = quantize(config, group)
        config = fewer if noise <= allowed else config
    done = {s.config for s in observations} | set(refused)
    return None if config in done else config
