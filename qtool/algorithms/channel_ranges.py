"""Ranges of the channels of tensors, for steps that give all channels of a tensor one range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from qtool.calibration.calibration import Calibration
from qtool.core.types import ObserverSpec
from qtool.observers.min_max import MinMax
from qtool.planning.plan import Probe

Factors = Mapping[str, torch.Tensor]
"""Tensor name -> divisors of its channels, float32 [channels]."""

WORTH = 3.0  # least ratio of the widest channel to the median; below it, one range fits them all
SMALLEST = 1e-5  # of the widest channel; a channel that was always zero is not scaled up


def channel_probe(tensor: str) -> Probe:
    """Return the probe for the extremes of a tensor's channels, its last dimension."""
    return Probe(_name(tensor), tensor, ObserverSpec("minmax"), axis=-1)


def unequal_channels(calibration: Calibration, tensor: str) -> torch.Tensor | None:
    """Return the largest magnitude of each channel, [channels]; None where they hardly differ, or
    where too few rows were seen: new ones would exceed the extremes of some channel."""
    extremes = calibration.statistics.get(_name(tensor))
    if not isinstance(extremes, MinMax) or extremes.empty:
        return None
    low, high = extremes.extent()
    size = torch.maximum(low.abs(), high.abs())
    widest = float(size.max())
    differ = widest > 0 and widest >= WORTH * float(size.median())
    return size if differ and extremes.rows >= len(size) else None


def with_scaled_ranges(
    calibration: Calibration, factors: Factors, names: Mapping[str, str]
) -> Calibration:
    """Return a calibration with the ranges of tensors that were divided, from their channels.

    Args:
        factors: divisors.
        names: tensor -> the tensor that has its divided values, perhaps itself.
    """
    specs, statistics = dict(calibration.specs), dict(calibration.statistics)
    for tensor, name in names.items():
        extremes = calibration.statistics[_name(tensor)]
        assert isinstance(extremes, MinMax)
        low, high = extremes.extent()
        by, range_ = factors[tensor].double(), MinMax(None)
        range_.update(torch.stack([low / by, high / by]).float())
        specs[name], statistics[name] = ObserverSpec("minmax"), range_
    return replace(calibration, specs=specs, statistics=statistics)


def _name(tensor: str) -> str:
    return f"{tensor}.channels"
