"""Pareto front of the cost model: configurations that no other one dominates in cost and error.

The problem is a multiple-choice knapsack with costs between neighbouring layers. A small space is
enumerated. A large one is swept: for each price of an error (a Lagrange multiplier), local search
changes single groups and runs of neighbouring groups to minimize cost + price * error, many moves
at a time. All configurations tried at any price are candidates.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qtool.core.types import Array
from qtool.plugins.search.choices import Config, Group
from qtool.plugins.search.cost_model import CostModel

EXHAUSTIVE_LIMIT = 2**14  # configurations, for enumeration
PRICES = 24
ROUNDS = 40
RUNS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


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
