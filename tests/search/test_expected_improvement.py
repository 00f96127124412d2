"""Which evaluation is expected to add most to the front."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qtool.search.cost_model import CostModel
from qtool.search.expected_improvement import (
    expected_hypervolume_improvement,
    most_promising,
    posterior,
)
from qtool.search.goals import TuneGoals
from qtool.search.next_candidate import Observation
from qtool.search.pareto_front import candidates, hypervolume
from tests.search.test_next_candidate import seen_at
from tests.search.test_pareto_front import model  # noqa: F401  # a fixture

COSTS, LEVELS, WORST = np.array([2.0, 4.0, 9.0]), np.array([6.0, 3.0, 1.0]), (8.0, 7.0)


@pytest.mark.parametrize("doubt", [1e-9, 1.0])
def test_the_gain_is_that_of_many_draws(doubt: float) -> None:
    cost, level = np.array([3.0, 1.0, 5.0, 9.0]), np.array([4.0, 6.5, 5.0, 0.5])
    sure = np.full(len(cost), doubt)
    known = hypervolume(COSTS, LEVELS, WORST)
    draws = np.random.default_rng(0).normal(size=(4000 if doubt == 1 else 1, 2)) * doubt
    each = [
        [
            hypervolume(np.append(COSTS, c + a), np.append(LEVELS, d + b), WORST) - known
            for c, d in zip(cost, level, strict=True)
        ]
        for a, b in draws
    ]
    found = expected_hypervolume_improvement(COSTS, LEVELS, WORST, (cost, sure), (level, sure))
    np.testing.assert_allclose(found, np.mean(each, 0), atol=0.1 * doubt + 1e-6)


def _as_predicted(additive: CostModel, config: tuple[int, ...]) -> Observation:
    noise, time, _ = (float(x[0]) for x in additive.predict(np.array([config])))
    found = replace(seen_at(1, noise).trial, predicted_noise=noise, predicted_time=time)
    return Observation(config, found, time)


@pytest.mark.parametrize("smallest", [False, True])
def test_all_that_is_known_or_refused_is_left_out(
    model: CostModel,  # noqa: F811  # as above
    smallest: bool,
) -> None:
    goals, seen = (
        TuneGoals(smallest=smallest),
        [_as_predicted(model, model.items.space.default_config)],
    )
    found = most_promising(model, seen, goals)
    assert found is not None
    assert found != seen[0].config
    assert most_promising(model, seen, goals, [found]) not in (None, found, seen[0].config)
    every = candidates(model, smallest).configs.tolist()
    assert most_promising(model, seen, goals, [tuple(c) for c in every]) is None


def test_what_was_missed_tells_of_files_like_it() -> None:
    there = np.array([[0] * 8, [1] * 8])
    files = np.array([[0] * 8, [0] * 7 + [1], [1] * 7 + [0], [0] * 4 + [1] * 4])
    mean, doubt = posterior(np.array([0.2, 0.0]), 0.1, 0.001, there, files)
    assert mean[0] == pytest.approx(0.2, rel=0.01)
    assert mean[0] > mean[1] > mean[3] > mean[2]
    assert doubt[0] < doubt[1] < doubt[3] < 0.1
