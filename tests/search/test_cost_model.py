"""Evaluations correct the additive model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qtool.search.cost_model import CostModel, correlation, fit_scales
from tests.search.test_pareto_front import model  # noqa: F401  # a fixture


def test_factors_of_groups_are_found(model: CostModel) -> None:  # noqa: F811  # as above
    groups = len(model.items.space.groups)
    real = replace(model, error_scales=np.linspace(0.3, 3, groups), time_scale=1.5)
    configs = [tuple(int(b) for b in f"{i:0{groups}b}") for i in range(2**groups - 1)]
    noise, time, _ = real.predict(np.array(configs))
    found = fit_scales(model, configs, list(noise), list(time))
    before, after = (m.predict(np.array(configs)) for m in (model, found))
    assert np.abs(np.log(after[0] / noise)).max() < 0.2 * np.abs(np.log(before[0] / noise)).max()
    assert np.abs(after[1] - time).max() < 0.1 * np.abs(before[1] - time).max()


def test_without_evaluations_all_is_as_it_was(model: CostModel) -> None:  # noqa: F811  # as above
    assert fit_scales(model, [], [], []) is model


def test_agreement_needs_three_different_numbers() -> None:
    assert correlation(np.array([1.0, 2]), np.array([1.0, 2])) is None
    assert correlation(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])) is None
    assert correlation(np.array([1.0, 2, 3]), np.array([2.0, 4, 6])) == 1
