"""Evaluations correct the additive model: one factor a group for errors, one for times.

Factors stay near one as long as few evaluations speak: regularised least squares on logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qtool.core.types import Array
from qtool.search.choices import Config
from qtool.search.cost_model import CostModel

PRIOR = 0.05  # of an evaluation's weight: what a factor that is e times too large costs
STEPS = 8


def fit_scales(
    model: CostModel, configs: Sequence[Config], noise: Sequence[float], time: Sequence[float]
) -> CostModel:
    """The model with factors that fit what was measured.

    Args:
        model: with factors of one.
        configs: evaluated ones, with their noise over signal and their microseconds.
    """
    if not configs:
        return model
    _, reckoned, _ = model.predict(np.array(configs))
    beyond = reckoned - model.float_time
    real = np.array(time) - model.float_time
    scale = float(np.square(beyond).mean()) or 1.0
    time_scale = (beyond @ real / scale + PRIOR) / (beyond @ beyond / scale + PRIOR)
    parts = np.array([model.group_noise(c) for c in configs])
    known = (np.array(noise) > 0) & (parts.sum(1) > 0)
    error_scales = _error_scales(parts[known], np.array(noise)[known])
    return replace(model, error_scales=error_scales, time_scale=max(0.1, float(time_scale)))


def _error_scales(parts: Array, noise: Array) -> Array:
    """Gauss-Newton on the logarithms of the factors of [evaluations, groups] noise."""
    logs = np.zeros(parts.shape[1])
    if not len(noise):
        return np.exp(logs)
    for _ in range(STEPS):
        each = parts * np.exp(logs)
        total = each.sum(1)
        slopes = each / total[:, None]
        misses = np.log(noise) - np.log(total)
        left = slopes.T @ slopes + PRIOR * np.eye(len(logs))
        logs = logs + np.linalg.solve(left, slopes.T @ misses - PRIOR * logs)
        logs = np.clip(logs, -4, 4)
    found: Array = np.exp(logs)
    return found


def correlation(predicted: Array, true: Array) -> float | None:
    """The correlation of what was predicted with what was measured; None of fewer than three, or
    of numbers that are all the same."""
    if len(true) < 3 or np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return None
    return float(np.corrcoef(predicted, true)[0, 1])
