"""Which evaluation is expected to add most to the front.

What the additive model missed at evaluated files tells of files like them: a Gaussian process over
its misses, relative in cost and in dB of noise, in which two files are the more alike the more
groups they choose the same for. So every file has a prediction and a doubt, and the one with the
largest expected improvement of the hypervolume is next. A file may be wanted for what is promised
of it, or because little is known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import torch

from qtool.core.types import Array
from qtool.search.choices import Config
from qtool.search.cost_model import CostModel
from qtool.search.goals import TuneGoals
from qtool.search.next_candidate import NOISE_FLOOR, Observation
from qtool.search.pareto_front import candidates, non_dominated

LENGTH_SCALE = 0.5  # of the groups: files that differ in so many are correlated by 1/e
MEASUREMENT_ERROR = (0.02, 0.1)  # what one evaluation may be off by: of the cost, and dB
MIN_COST = 0.01  # of the cost of float: no prediction is below


def most_promising(
    model: CostModel,
    seen: Sequence[Observation],
    goals: TuneGoals,
    refused: Collection[Config] = (),
) -> Config | None:
    """None where there is nothing new.

    Args:
        seen: at least one.
        refused: what turned out to be no plan.
    """
    known = candidates(model, goals.smallest, {s.config for s in seen} | set(refused))
    if not len(known.configs):
        return None
    # nobody wants what costs more than float, which loses nothing
    most = model.float_size if goals.smallest else model.float_time
    there = np.array([s.config for s in seen])
    costs = np.array([s.cost for s in seen])
    levels = _decibels(np.array([s.trial.score.noise for s in seen]))
    noise, time, size = model.predict(there)
    reckoned = np.maximum(size if goals.smallest else time, MIN_COST * most)
    misses = np.log(costs / reckoned), levels - _decibels(noise)
    spreads = _prior_deviations(seen, MIN_COST * most, goals.smallest)
    (more, doubt), (louder, haze) = (
        posterior(missed, spread, look, there, known.configs)
        for missed, spread, look in zip(misses, spreads, MEASUREMENT_ERROR, strict=True)
    )
    cost = np.maximum(known.size if goals.smallest else known.time, MIN_COST * most) * np.exp(more)
    level = _decibels(known.noise) + louder
    best = non_dominated(cost, level)
    worst = most, float(max(levels.max(), level.max())) + 1.0
    guess = (cost[best], cost[best] * doubt[best]), (level[best], haze[best])
    return known.config(
        int(best[expected_hypervolume_improvement(costs, levels, worst, *guess).argmax()])
    )


def _decibels(noise: Array) -> Array:
    found: Array = 10 * np.log10(np.maximum(noise, NOISE_FLOOR))
    return found


def _prior_deviations(
    seen: Sequence[Observation], least: float, by_size: bool
) -> tuple[float, float]:
    """How far predictions were off when they were made, of the cost and in dB; sizes are known."""
    told = [s for s in seen if s.trial.predicted_noise > 0]
    times = np.array([max(s.trial.predicted_time, least) for s in told])
    cost = 0.0 if by_size else _rms(np.log(np.array([s.cost for s in told]) / times))
    noises = np.array([(s.trial.score.noise, s.trial.predicted_noise) for s in told])
    level = _rms(np.subtract(*_decibels(noises).T)) if told else 0.0
    return max(MEASUREMENT_ERROR[0], cost), max(MEASUREMENT_ERROR[1], level)


def _rms(misses: Array) -> float:
    return float(np.sqrt(np.square(misses).mean())) if len(misses) else 0.0


def posterior(
    misses: Array, spread: float, look: float, there: Array, configs: Array
) -> tuple[Array, Array]:
    """Mean and deviation of what is missed elsewhere.

    Args:
        misses: [seen] by how much predictions were too low.
        spread: of misses, before any is known.
        look: the deviation of a miss as it was measured.
        there, configs: [seen, groups] and [files, groups].
    """
    among, near = _correlation(there, there), _correlation(configs, there)
    weights = near @ np.linalg.inv(among + np.eye(len(misses)) * (look / spread) ** 2)
    left = 1 - (weights * near).sum(1)
    return weights @ misses, spread * np.sqrt(np.maximum(left, 1e-4))


def _correlation(configs: Array, others: Array) -> Array:
    """[configs, others] the correlation of what the model misses."""
    differ = [(configs != other).mean(1) for other in others]  # one by one: there may be many
    found: Array = np.exp(-np.stack(differ, 1) / LENGTH_SCALE)
    return found


def expected_hypervolume_improvement(
    costs: Array,
    levels: Array,
    worst: tuple[float, float],
    cost: tuple[Array, Array],
    level: tuple[Array, Array],
) -> Array:
    """The hypervolume that each of some files is expected to add to that of the known ones.

    Exact for independent normal distributions: between two neighbours of the front, what is below
    its level is expected to be dominated for as long as the file is cheaper.

    Args:
        costs, levels: of the known ones.
        cost, level: mean and deviation of the others.
    """
    order = non_dominated(costs, levels)
    order = order[(costs[order] < worst[0]) & (levels[order] < worst[1])]
    ends = np.append(costs[order], worst[0])
    heights = np.append(worst[1], levels[order])
    widths = np.diff(_expected_shortfall(ends, *cost), axis=0, prepend=0)
    found: Array = (widths * _expected_shortfall(heights, *level)).sum(0)
    return found


def _expected_shortfall(limits: Array, mean: Array, deviation: Array) -> Array:
    """[limits, files] by how much a file is expected to be below a limit, nothing if above."""
    z = (limits[:, None] - mean) / deviation
    share = torch.special.ndtr(torch.from_numpy(z)).numpy()
    found: Array = deviation * (z * share + np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
    return found
