"""Fit the cost model to evaluations: one scale factor per group for errors, and one for times.

Regularised least squares on logarithms keep the factors near 1 while there are few evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qtool.core.types import Array
from qtool.search.choices import Config
from qtool.search.cost_model import CostModel

PRIOR = 0.05  # weight of a factor of e, relative to one evaluation
STEPS = 8


def fit_scales(
    model: CostModel, configs: Sequence[Config], noise: Sequence[float], time: Sequence[float]
) -> CostModel:
    """Return the model with scale factors that fit the measurements.

    Args:
        model: with scale factors of 1.
        configs: evaluated configurations.
        noise, time: their noise-to-signal ratios and microseconds.
    """
    if not configs:
        return model
    _, predicted, _ = model.predict(np.array(configs))
    predicted = predicted - model.float_time
    measured = np.array(time) - model.float_time
    scale = float(np.square(predicted).mean()) or 1.0
    time_scale = (predicted @ measured / scale + PRIOR) / (predicted @ predicted / scale + PRIOR)
    parts = np.array([model.group_noise(c) for c in configs])
    known = (np.array(noise) > 0) & (parts.sum(1) > 0)
    error_scales = _error_scales(parts[known], np.array(noise)[known])
    return replace(model, error_scales=error_scales, time_scale=max(0.1, float(time_scale)))


def _error_scales(parts: Array, noise: Array) -> Array:
    """Return the scale factors of [evaluations, groups] noise, by Gauss-Newton on logarithms."""
    logs = np.zeros(parts.shape[1])
    if not len(noise):
        return np.exp(logs)
    for _ in range(STEPS):
        each = parts * np.exp(logs)
        total = each.sum(1)
        slopes = each / total[:, None]
        residuals = np.log(noise) - np.log(total)
        left = slopes.T @ slopes + PRIOR * np.eye(len(logs))
        logs = logs + np.linalg.solve(left, slopes.T @ residuals - PRIOR * logs)
        logs = np.clip(logs, -4, 4)
    factors: Array = np.exp(logs)
    return factors


def correlation(predicted: Array, true: Array) -> float | None:
    """Return the correlation; None for fewer than 3 values, or if all are equal."""
    if len(true) < 3 or np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return None
    return float(np.corrcoef(predicted, true)[0, 1])
