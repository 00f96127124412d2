"""Factors of the streams of channels that minimise the predicted noise of the outputs.

The mean squared error of every element of a tensor on one grid is step^2 / 12. The step of an
activation is proportional to the largest channel range divided by the channel's factor. The step of
a row of weights is proportional to its largest weight times the factor of the channel that the
weight reads. `gradient_sensitivity` measures how much of these errors reaches the outputs. So a
factor trades noise of activations against noise of weights, and noise of one tensor against noise
of the other tensors of its stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch.nn.utils.rnn import pad_sequence

from qtool.algorithms.cross_layer_equalization.gradient_sensitivity import (
    Sensitivity,
    TensorSensitivity,
    row_stride,
    sampled_rows,
)
from qtool.algorithms.cross_layer_equalization.stream_walk import Streams
from qtool.core import graph as G
from qtool.core.ops import data_inputs, row_of
from qtool.planning.plan import Execution, Kind, QuantPlan

STEPS, RATE = 60, 0.08  # of Adam; the rate in octaves
SHARP = 24  # exponent of the norm that approximates a maximum
SMALLEST = 2.0**-12  # of the widest channel; smaller channels are not scaled up further
MARGIN = 1.05  # margin between the largest observed value and a clamp's bound
GRAIN = 16  # factors are rounded to this part of an octave, to absorb last bits of gradients


@dataclass(frozen=True, eq=False)
class _Tensor:
    """One rounding of a tensor.

    Attributes:
        streams, gain: of its channels, [channels].
        range_streams, low, high: of the tensor whose range sets the step, [channels].
        levels: number of steps in the range.
    """

    streams: torch.Tensor
    gain: torch.Tensor
    range_streams: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    levels: int


@dataclass(frozen=True, eq=False)
class _Tensors:
    """Roundings of several tensors; see `_Tensor`.

    Attributes:
        levels: float64 [tensors]; the others are [tensors, channels], padded with zeros.
    """

    streams: torch.Tensor
    gain: torch.Tensor
    range_streams: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    levels: torch.Tensor

    @classmethod
    def of(cls, each: Sequence[_Tensor]) -> _Tensors:
        fields = ("streams", "gain", "range_streams", "low", "high")
        padded = {f: pad_sequence([getattr(t, f) for t in each], batch_first=True) for f in fields}
        levels = torch.tensor([t.levels for t in each], dtype=torch.float64)
        return cls(**padded, levels=levels)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a layer's weights.

    Attributes:
        size, gain: largest magnitude and gain over the kernel, [rows, inputs].
        streams: that each weight reads, [rows, inputs]; [1, inputs] if equal for all rows.
        levels: number of steps in the range of a row.
    """

    size: torch.Tensor
    gain: torch.Tensor
    streams: torch.Tensor
    levels: int


@dataclass(frozen=True)
class Noise:
    """The roundings that depend on the factors: of activations and of weights."""

    tensors: _Tensors | None
    rows: tuple[_Rows, ...]


@dataclass(frozen=True, eq=False)
class Limits:
    """Bounds of the factors.

    Attributes:
        lower: of their logarithms (base 2), float64 [streams].
        pinned: factors that stay 1, bool [streams].
    """

    lower: torch.Tensor
    pinned: torch.Tensor


def noise_model(
    module: fx.GraphModule, plan: QuantPlan, streams: Streams, sensitivity: Sensitivity
) -> Noise:
    """Return the roundings that depend on factors."""
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    tensors = tuple(_roundings(nodes, plan, streams, sensitivity.tensors))
    rows = []
    for slot in streams.slots:
        node = nodes[slot.constant]
        (layer,) = node.users
        row, name = row_of(layer), f"{G.name_of(layer)}.weight"
        if (
            slot.power != 1
            or name not in plan
            or row is None
            or slot.constant not in sensitivity.weights
        ):
            continue
        weight, axis = G.tensor(module, node).detach(), row.channel_axis
        weight, channel = (
            sampled_rows(t, axis, row_stride(weight)) for t in (weight, slot.channel)
        )
        size = _by_row(weight.double().abs().cpu(), axis)
        channel = channel.movedim(axis, 0).flatten(1)
        read = streams.tensors[slot.tensor].streams[channel]
        gain = _by_row(sensitivity.weights[slot.constant].cpu(), axis).sum(-1)
        read = read[:1] if bool((read == read[:1]).all()) else read
        rows.append(_Rows(size.amax(-1), gain, read, _levels(plan, name)))
    return Noise(_Tensors.of(tensors) if tensors else None, tuple(rows))


def _by_row(values: torch.Tensor, axis: int) -> torch.Tensor:
    """Return weights as [rows, inputs, kernel]."""
    values = values.movedim(axis, 0)
    return values.reshape(*values.shape[:2], -1)


def _levels(plan: QuantPlan, name: str) -> int:
    spec = plan.point(plan.root(name)).spec
    qtype = getattr(spec, "qtype", None)
    return qtype.levels if qtype is not None else 255


def _roundings(
    nodes: Mapping[str, fx.Node],
    plan: QuantPlan,
    streams: Streams,
    sensitivity: Mapping[str, TensorSensitivity],
) -> Iterator[_Tensor]:
    """Yield the roundings of activations; a shared range is that of the owner of the parameters."""
    for point in plan.placed:
        name, root = point.tensor, plan.root(point.name)
        owner = plan.point(root).tensor
        decision = plan.decision(name)
        if point.kind is not Kind.ACTIVATION or not {name, owner} <= sensitivity.keys():
            continue
        if decision is not None and decision.execution is Execution.PASS:  # the codes stay the same
            continue
        gain = sensitivity[name].gain
        if decision is not None and decision.op == "concat":
            gain = _rescaled(nodes[name], plan, root, streams, gain)
        yield _Tensor(
            streams.tensors[name].streams,
            gain,
            streams.tensors[owner].streams,
            sensitivity[owner].low,
            sensitivity[owner].high,
            _levels(plan, point.name),
        )


def _rescaled(
    concat: fx.Node, plan: QuantPlan, root: str, streams: Streams, gain: torch.Tensor
) -> torch.Tensor:
    """Return the gain of a concat, zero for inputs with its parameters, whose codes it copies."""
    axis = int(G.argument(concat, 1, "dim", 0)) % G.rank(concat)
    if axis != streams.tensors[G.name_of(concat)].axis:
        return gain
    names = [G.name_of(n) for n in data_inputs(concat)]
    parts = gain.split([len(streams.tensors[n].streams) for n in names])
    copied = [n in plan and plan.root(n) == root for n in names]
    return torch.cat([p * 0 if same else p for p, same in zip(parts, copied, strict=True)])


def factor_limits(streams: Streams, highest: Mapping[str, torch.Tensor]) -> Limits:
    """Return the bounds that clamps with an upper bound set.

    A channel that reached the bound keeps the factor 1. Others may be scaled up to the bound, with
    a margin: larger values than observed would be clipped at another place.

    Args:
        highest: input of a clamp -> largest value of each channel [channels].
    """
    lower = torch.full((streams.count,), -float("inf"), dtype=torch.float64)
    pinned = torch.zeros(streams.count, dtype=torch.bool)
    pinned[0] = True
    for bound in streams.bounds:
        numbers, high = streams.tensors[bound.source].streams, highest.get(bound.source)
        if high is None:
            pinned[numbers] = True
            continue
        pinned[numbers[high >= bound.high]] = True
        headroom = torch.log2(high.clamp(min=1e-30) * MARGIN / bound.high).clamp(max=0)
        lower.scatter_reduce_(0, numbers, headroom, "amax")
    return Limits(lower, pinned)


def predict_noise(noise: Noise, logs: torch.Tensor) -> torch.Tensor:
    """Return the relative output noise. logs: of the factors, base 2, [streams]."""
    factors, total = torch.exp2(logs), logs.new_zeros(())
    if (t := noise.tensors) is not None:
        by = factors[t.range_streams]
        span = (t.high.clamp(min=0) / by).amax(-1) + ((-t.low).clamp(min=0) / by).amax(-1)
        total = total + ((span / t.levels) ** 2 / 12 * _error_gain(t, factors).sum(-1)).sum()
    for r in noise.rows:
        by = factors[r.streams]
        step = 2 * (r.size * by).amax(-1) / r.levels
        total = total + (step**2 / 12 * (r.gain / by**2).sum(-1)).sum()
    return total


def _error_gain(t: _Tensors, factors: torch.Tensor) -> torch.Tensor:
    return factors[t.streams].square() * t.gain


class NoiseGradient:
    """The gradient of the noise, with a norm in place of the maximum.

    Sizes are raised to the power of SHARP once, and factors in each call, so that the weights of a
    layer take four matrix-vector products.
    """

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self.ends = [_Power.of(end) for t in (noise.tensors,) if t for end in (t.high, -t.low)]
        self.rows = [_Power.of(r.size) for r in noise.rows]

    def __call__(self, logs: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the logarithm of the noise, float64 [streams]."""
        factors, slope, total = torch.exp2(logs), torch.zeros_like(logs), 0.0
        if (t := self.noise.tensors) is not None:
            (high, of_high), (low, of_low) = (
                end.norm(factors[t.range_streams].reciprocal()) for end in self.ends
            )
            gain, span = _error_gain(t, factors), high + low
            scale = 2 * span / t.levels.square() / 12
            whole = gain.sum(-1)
            by_range = -(scale * whole)[:, None] * (high[:, None] * of_high + low[:, None] * of_low)
            slope.index_add_(0, t.range_streams.flatten(), by_range.flatten())
            slope.index_add_(0, t.streams.flatten(), ((scale * span)[:, None] * gain).flatten())
            total += float((scale * span / 2 * whole).sum())
        for r, size in zip(self.noise.rows, self.rows, strict=True):
            by = factors[r.streams]
            value, gradient = _row_noise(r, size, by)
            total += value
            slope.index_add_(0, r.streams.flatten(), gradient.flatten())
        return slope / max(total, 1e-300)


@dataclass(frozen=True, eq=False)
class _Power:
    """Sizes of weights or channels, prepared for a norm.

    Attributes:
        powers: size over the largest of its row, to the power of SHARP, [rows, inputs].
        largest: of each row, [rows].
    """

    powers: torch.Tensor
    largest: torch.Tensor

    @classmethod
    def of(cls, size: torch.Tensor) -> _Power:
        largest = size.clamp(min=0).amax(-1)
        return cls((size.clamp(min=0) / largest.clamp(min=1e-30)[:, None]) ** SHARP, largest)

    def norm(self, by: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of size times `by` for each row, slightly above the maximum, and its
        relative gradient."""
        top = by.amax(-1, keepdim=True).clamp(min=1e-30)
        each = self.powers * (by / top) ** SHARP
        whole = each.sum(-1).clamp(min=1e-300)
        return self.largest * top[:, 0] * whole ** (1 / SHARP), each / whole[:, None]


def _row_noise(r: _Rows, size: _Power, by: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return the noise of a layer's weights, and its gradient by the streams they read."""
    if len(by) > 1:
        norm, share = size.norm(by)
        gain = r.gain / by.square()
        step = 2 * norm / r.levels
        each = step.square() / 12
        return float((each * gain.sum(-1)).sum()), 2 * each[:, None] * (
            share * gain.sum(-1)[:, None] - gain
        )
    top = by.max()
    power, back = (by[0] / top) ** SHARP, by[0].square().reciprocal()
    whole, gain = (size.powers @ power).clamp(min=1e-300), r.gain @ back
    each = (2 / r.levels * size.largest * top * whole ** (1 / SHARP)).square() / 12
    inner = size.powers.mT @ (each * gain / whole) * power - r.gain.mT @ each * back
    return float(each @ gain), 2 * inner


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
