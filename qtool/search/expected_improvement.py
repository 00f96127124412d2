"""Expected hypervolume improvement: the evaluation that may extend the Pareto front most.

A Gaussian process models the residuals of the cost model at evaluated files, relative in cost and
in dB of noise; two files correlate by the share of groups with equal choices. Every candidate thus
has a predicted mean and deviation. The next one has the largest expected improvement of the
hypervolume: either its prediction is good, or it is uncertain.
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

LENGTH_SCALE = 0.5  # share of differing groups at which the correlation is 1/e
MEASUREMENT_ERROR = (0.02, 0.1)  # deviation of one evaluation: relative cost, and dB
MIN_COST = 0.01  # of the cost of float: lower bound of predictions


def most_promising(
    model: CostModel,
    observations: Sequence[Observation],
    goals: TuneGoals,
    refused: Collection[Config] = (),
) -> Config | None:
    """Return the candidate with the largest expected improvement, or None if none is left.

    Args:
        observations: evaluated configurations, at least one.
        refused: configurations that cannot be converted.
    """
    pool = candidates(model, goals.smallest, {s.config for s in observations} | set(refused))
    if not len(pool.configs):
        return None
    # the float model has no error, so a higher cost is of no use
    most = model.float_size if goals.smallest else model.float_time
    observed = np.array([s.config for s in observations])
    costs = np.array([s.cost for s in observations])
    levels = _decibels(np.array([s.trial.score.noise for s in observations]))
    noise, time, size = model.predict(observed)
    predicted = np.maximum(size if goals.smallest else time, MIN_COST * most)
    residuals = np.log(costs / predicted), levels - _decibels(noise)
    spreads = _prior_deviations(observations, MIN_COST * most, goals.smallest)
    (cost_shift, cost_deviation), (level_shift, level_deviation) = (
        posterior(residual, spread, error, observed, pool.configs)
        for residual, spread, error in zip(residuals, spreads, MEASUREMENT_ERROR, strict=True)
    )
    cost = np.maximum(pool.size if goals.smallest else pool.time, MIN_COST * most)
    cost = cost * np.exp(cost_shift)
    level = _decibels(pool.noise) + level_shift
    best = non_dominated(cost, level)
    worst = most, float(max(levels.max(), level.max())) + 1.0
    normal = (cost[best], cost[best] * cost_deviation[best]), (level[best], level_deviation[best])
    improvement = expected_hypervolume_improvement(costs, levels, worst, *normal)
    return pool.config(int(best[improvement.argmax()]))


def _decibels(noise: Array) -> Array:
    level: Array = 10 * np.log10(np.maximum(noise, NOISE_FLOOR))
    return level


def _prior_deviations(
    observations: Sequence[Observation], least: float, by_size: bool
) -> tuple[float, float]:
    """Return the RMS errors of earlier predictions: relative cost (0 for sizes), and dB."""
    predicted = [s for s in observations if s.trial.predicted_noise > 0]
    times = np.array([max(s.trial.predicted_time, least) for s in predicted])
    cost = 0.0 if by_size else _rms(np.log(np.array([s.cost for s in predicted]) / times))
    noises = np.array([(s.trial.score.noise, s.trial.predicted_noise) for s in predicted])
    level = _rms(np.subtract(*_decibels(noises).T)) if predicted else 0.0
    return max(MEASUREMENT_ERROR[0], cost), max(MEASUREMENT_ERROR[1], level)


def _rms(errors: Array) -> float:
    return float(np.sqrt(np.square(errors).mean())) if len(errors) else 0.0


def posterior(
    residuals: Array, spread: float, error: float, observed: Array, configs: Array
) -> tuple[Array, Array]:
    """Return mean and deviation of the residuals of other configurations.

    Args:
        residuals: [n] measurement minus prediction.
        spread: prior deviation of the residuals.
        error: deviation of a measurement.
        observed, configs: [n, groups] and [m, groups].
    """
    among, near = _correlation(observed, observed), _correlation(configs, observed)
    weights = near @ np.linalg.inv(among + np.eye(len(residuals)) * (error / spread) ** 2)
    variance = 1 - (weights * near).sum(1)
    return weights @ residuals, spread * np.sqrt(np.maximum(variance, 1e-4))


def _correlation(configs: Array, others: Array) -> Array:
    """Return [configs, others] correlation of the residuals."""
    differ = [(configs != other).mean(1) for other in others]  # one by one, to save memory
    correlation: Array = np.exp(-np.stack(differ, 1) / LENGTH_SCALE)
    return correlation


def expected_hypervolume_improvement(
    costs: Array,
    levels: Array,
    worst: tuple[float, float],
    cost: tuple[Array, Array],
    level: tuple[Array, Array],
) -> Array:
    """Return the hypervolume that each candidate is expected to add to the front.

    Exact for independent normal distributions of cost and level: the front is split into strips
    between neighbours, and the expected area in each strip is a product.

    Args:
        costs, levels: costs and levels of the evaluated files.
        worst: reference point of the hypervolume.
        cost, level: mean and deviation of the candidates.
    """
    order = non_dominated(costs, levels)
    order = order[(costs[order] < worst[0]) & (levels[order] < worst[1])]
    ends = np.append(costs[order], worst[0])
    heights = np.append(worst[1], levels[order])
    widths = np.diff(_expected_shortfall(ends, *cost), axis=0, prepend=0)
    improvement: Array = (widths * _expected_shortfall(heights, *level)).sum(0)
    return improvement


def _expected_shortfall(limits: Array, mean: Array, deviation: Array) -> Array:
    """Return [limits, files] expected distance below a limit, 0 if above."""
    z = (limits[:, None] - mean) / deviation
    share = torch.special.ndtr(torch.from_numpy(z)).numpy()
    below: Array = deviation * (z * share + np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
    return below
