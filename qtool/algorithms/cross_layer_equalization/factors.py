"""Factors of the streams of channels that minimise the predicted noise (`noise_model`).

Adam on the logarithms of the factors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import log

import torch

from qtool.algorithms.cross_layer_equalization.noise_model import (
    Noise,
    error_gain,
    predict_noise,
)
from qtool.algorithms.cross_layer_equalization.stream_walk import Streams

STEPS, RATE = 60, 0.08  # of Adam; the rate in octaves
SHARP = 24  # exponent of the norm that approximates a maximum
SMALLEST = 2.0**-12  # of the widest channel; smaller channels are not scaled up further
MARGIN = 1.05  # margin between the largest observed value and a clamp's bound
GRAIN = 16  # factors are rounded to this part of an octave, to absorb last bits of gradients


@dataclass(frozen=True, eq=False)
class Limits:
    """Bounds of the factors.

    Attributes:
        lower: lower bounds of their logarithms (base 2), float64 [streams].
        pinned: factors that stay 1, bool [streams].
    """

    lower: torch.Tensor
    pinned: torch.Tensor


def factor_limits(
    streams: Streams, highest: Mapping[str, torch.Tensor], unmeasured: Collection[str] = ()
) -> Limits:
    """Return the bounds that clamps with an upper bound set.

    A channel that reached the bound keeps the factor 1. Others may be scaled up to the bound, with
    a margin: larger values than observed would be clipped at another place.

    Args:
        streams: streams of the graph.
        highest: input of a clamp -> largest value of each channel [channels].
        unmeasured: tensors whose noise is not predicted; their channels keep the factor 1.
    """
    lower = torch.full((streams.count,), -float("inf"), dtype=torch.float64)
    pinned = torch.zeros(streams.count, dtype=torch.bool)
    pinned[0] = True
    for name in unmeasured:
        if name in streams.tensors:
            pinned[streams.tensors[name].streams] = True
    for bound in streams.bounds:
        numbers, high = streams.tensors[bound.source].streams, highest.get(bound.source)
        if high is None:
            pinned[numbers] = True
            continue
        pinned[numbers[high >= bound.high]] = True
        headroom = torch.log2(high.clamp(min=1e-30) * MARGIN / bound.high).clamp(max=0)
        lower.scatter_reduce_(0, numbers, headroom, "amax")
    return Limits(lower, pinned)


class NoiseGradient:
    """The gradient of the noise, with a norm in place of the maximum.

    Sizes are raised to the power of SHARP once, and factors in each call, so that the weights of a
    layer take four matrix-vector products, two of them backwards.
    """

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self.ends = [_Power.of(end) for t in (noise.tensors,) if t for end in (t.high, -t.low)]
        self.rows = [_Power.of(r.size) for r in noise.rows]

    def __call__(self, logs: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the logarithm of the noise, float64 [streams]."""
        natural = (logs.detach() * log(2)).requires_grad_()
        with torch.enable_grad():
            total = self._noise(natural.exp()).clamp(min=1e-300).log()
        return torch.autograd.grad(total, natural)[0]

    def _noise(self, factors: torch.Tensor) -> torch.Tensor:
        total = 0 * factors.sum()
        if (t := self.noise.tensors) is not None:
            span = sum(end.norm(factors[t.range_streams].reciprocal()) for end in self.ends)
            total = total + ((span / t.levels) ** 2 / 12 * error_gain(t, factors).sum(-1)).sum()
        for r, size in zip(self.noise.rows, self.rows, strict=True):
            by = factors[r.streams]
            step = 2 * size.norm(by) / r.levels
            total = total + (step**2 / 12 * _row_sums(r.gain, by**-2)).sum()
        return total


@dataclass(frozen=True, eq=False)
class _Power:
    """Sizes of weights or channels, prepared for a norm.

    Attributes:
        powers: size over the largest of its row, to the power of SHARP, [rows, inputs].
        largest: largest element of each row, [rows].
    """

    powers: torch.Tensor
    largest: torch.Tensor

    @classmethod
    def of(cls, size: torch.Tensor) -> _Power:
        largest = size.clamp(min=0).amax(-1)
        return cls((size.clamp(min=0) / largest.clamp(min=1e-30)[:, None]) ** SHARP, largest)

    def norm(self, by: torch.Tensor) -> torch.Tensor:
        """Return the norm of size times `by` for each row, slightly above the maximum."""
        top = by.detach().amax(-1, keepdim=True).clamp(min=1e-30)
        whole = _row_sums(self.powers, (by / top) ** SHARP).clamp(min=1e-300)
        return self.largest * top[:, 0] * whole ** (1 / SHARP)


def _row_sums(values: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Return the sums of values times `by`, [rows, inputs], or [1, inputs] if equal for all."""
    return values @ by[0] if len(by) == 1 else (values * by).sum(-1)


def solve_factors(noise: Noise, limits: Limits) -> torch.Tensor:
    """Return the logarithms (base 2) of the factors, float64 [streams]; zeros if nothing helps.

    Adam on the logarithms, starting from equal channel ranges; returns the best point it passes.
    """
    start = _equal_ranges(noise, limits)
    best, lowest = torch.zeros_like(start), float(predict_noise(noise, torch.zeros_like(start)))
    logs, slope = _clamped(start, limits), NoiseGradient(noise)
    optimizer = torch.optim.Adam([logs], lr=RATE)
    for i in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - i / STEPS) + RATE / 40
        logs.grad = slope(logs)
        optimizer.step()
        logs.copy_(_clamped(logs, limits))
        if i % 10 == 9:
            rounded = _clamped(torch.round(logs * GRAIN) / GRAIN, limits)
            predicted = float(predict_noise(noise, rounded))
            if predicted < lowest:
                best, lowest = rounded, predicted
    return best


def _clamped(logs: torch.Tensor, limits: Limits) -> torch.Tensor:
    return torch.maximum(logs, limits.lower).masked_fill(limits.pinned, 0.0)


def _equal_ranges(noise: Noise, limits: Limits) -> torch.Tensor:
    """Return the factors that equalize channel ranges, averaged over the tensors of a stream."""
    total, count = torch.zeros_like(limits.lower), torch.zeros_like(limits.lower)
    if (t := noise.tensors) is not None:
        size = torch.maximum(t.high, -t.low)
        used = size > size.amax(-1, keepdim=True) * SMALLEST
        total.index_add_(0, t.range_streams[used], size[used].log2())
        count.index_add_(0, t.range_streams[used], torch.ones_like(size[used]))
    return torch.where(count > 0, total / count.clamp(min=1), 0.0)
