"""The front of an additive model: configurations of which none is both cheaper and more exact.

A multiple-choice knapsack in which neighbours matter. Few configurations are all looked at. Many
are not: for each price of an error, the cheapest total is looked for by changing single groups and
runs of neighbouring groups, many tries at once; the prices sweep from nothing to everything, and
all that was tried counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from qtool.core.types import Array
from qtool.search.choices import Config, Group
from qtool.search.cost_model import CostModel

EXHAUSTIVE_LIMIT = 2**14  # configurations that are all looked at
PRICES = 24
ROUNDS = 40
RUNS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, eq=False)
class Candidates:
    """configs: [n, groups], from the cheapest to the most exact. noise, time, size: [n] as
    predicted. exact: whether all configurations were looked at."""

    configs: Array
    noise: Array
    time: Array
    size: Array
    exhaustive: bool

    def config(self, number: int) -> Config:
        return tuple(int(c) for c in self.configs[number])


def pareto_front(model: CostModel, by_size: bool = False) -> Candidates:
    """All configurations that nobody predicts to be worse in both ways than another.

    Args:
        by_size: cost is bytes, not time.
    """
    known = candidates(model, by_size)
    order = non_dominated(known.size if by_size else known.time, known.noise)
    return Candidates(
        known.configs[order],
        known.noise[order],
        known.time[order],
        known.size[order],
        known.exhaustive,
    )


def candidates(
    model: CostModel, by_size: bool = False, exclude: Collection[Config] = ()
) -> Candidates:
    """What the front is taken from: all of it, in no order.

    Args:
        without: what is left out.
    """
    groups = model.items.space.groups
    counts = [len(g.choices) for g in groups]
    few = float(np.prod([float(c) for c in counts])) <= EXHAUSTIVE_LIMIT
    every = itertools.product(*map(range, counts))
    tried = np.array(list(every)) if few else _sweep_prices(model, by_size)
    is_float, out = model.items.space.is_float, set(exclude)
    rows = [tuple(config) for config in tried.tolist()]
    tried = tried[[not is_float(row) and row not in out for row in rows]]
    return Candidates(tried, *model.predict(tried), few)


def non_dominated(cost: Array, noise: Array) -> Array:
    """The places of the best, by rising cost and falling noise; the first of equals."""
    order = np.lexsort((noise, cost))
    least = np.minimum.accumulate(np.concatenate([[np.inf], noise[order][:-1]]))
    found: Array = order[noise[order] < least]
    return found


def hypervolume(cost: Array, noise: Array, worst: tuple[float, float]) -> float:
    """The area that points dominate, up to a worst cost and a worst noise."""
    order = non_dominated(cost, noise)
    order = order[(cost[order] < worst[0]) & (noise[order] < worst[1])]
    ends = np.append(cost[order][1:], worst[0])
    return float(((ends - cost[order]) * (worst[1] - noise[order])).sum())


def _sweep_prices(model: CostModel, by_size: bool) -> Array:
    """What the sweep over the prices has tried; neighbours are neighbours in order of computation,
    and from one price to the next the search goes on where it stands."""
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
    found: Array = np.unique(np.concatenate(tried), axis=0)
    return found


def _moves(groups: Sequence[Group], names: Sequence[str]) -> Array:
    """[moves, groups] the choice that a move gives a group, -1 where it leaves it: every choice for
    every run of groups that have it."""
    count = len(groups)
    given = np.array(
        [[g.choices.index(n) if n in g.choices else -1 for g in groups] for n in names]
    )
    places = np.arange(count)
    runs = [
        (places >= start) & (places < start + length)
        for length in RUNS
        for start in range(count - length + 1)
    ]
    return np.concatenate([np.where(np.array(runs), row, -1) for row in given])
