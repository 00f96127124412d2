"""Predicted noise of the outputs, as a function of the factors of streams of channels.

The mean squared error of every element of a tensor on one grid is step^2 / 12. The step of an
activation is proportional to the largest channel range divided by the channel's factor. The step of
a row of weights is proportional to its largest weight times the factor of the channel that the
weight reads. `gradient_sensitivity` measures how much of these errors reaches the outputs. So a
factor trades noise of activations against noise of weights, and noise of one tensor against noise
of the other tensors of its stream.
"""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True, eq=False)
class Activations:
    """Roundings of tensors.

    Attributes:
        streams, gain: stream and gain of their channels, [tensors, channels], as all but `levels`
            padded with zeros.
        range_streams, low, high: streams and extremes of the tensors whose range sets the step.
        levels: number of steps in the range, float64 [tensors].
    """

    streams: torch.Tensor
    gain: torch.Tensor
    range_streams: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    levels: torch.Tensor


@dataclass(frozen=True, eq=False)
class WeightRows:
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

    tensors: Activations | None
    rows: tuple[WeightRows, ...]


def noise_model(
    module: fx.GraphModule, plan: QuantPlan, streams: Streams, sensitivity: Sensitivity
) -> Noise:
    """Return the roundings that depend on factors."""
    nodes = {G.name_of(n): n for n in module.graph.nodes}
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
        rows.append(WeightRows(size.amax(-1), gain, read, _levels(plan, name)))
    return Noise(_roundings(nodes, plan, streams, sensitivity.tensors), tuple(rows))


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
) -> Activations | None:
    """Return the roundings of activations; a shared range is that of its owner."""
    rows, levels = [], []
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
        own, of_range = streams.tensors[name].streams, streams.tensors[owner].streams
        rows.append((own, gain, of_range, sensitivity[owner].low, sensitivity[owner].high))
        levels.append(_levels(plan, point.name))
    if not rows:
        return None
    fields = ("streams", "gain", "range_streams", "low", "high")
    columns = zip(fields, zip(*rows, strict=True), strict=True)
    padded = {name: pad_sequence(list(each), batch_first=True) for name, each in columns}
    return Activations(**padded, levels=torch.tensor(levels, dtype=torch.float64))


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


def predict_noise(noise: Noise, logs: torch.Tensor) -> torch.Tensor:
    """Return the relative output noise. logs: of the factors, base 2, [streams]."""
    factors, total = torch.exp2(logs), logs.new_zeros(())
    if (t := noise.tensors) is not None:
        by = factors[t.range_streams]
        span = (t.high.clamp(min=0) / by).amax(-1) + ((-t.low).clamp(min=0) / by).amax(-1)
        total = total + ((span / t.levels) ** 2 / 12 * error_gain(t, factors).sum(-1)).sum()
    for r in noise.rows:
        by = factors[r.streams]
        step = 2 * (r.size * by).amax(-1) / r.levels
        total = total + (step**2 / 12 * (r.gain / by**2).sum(-1)).sum()
    return total


def error_gain(t: Activations, factors: torch.Tensor) -> torch.Tensor:
    """Return the gains for errors of the scaled tensors, [tensors, channels]."""
    return factors[t.streams].square() * t.gain
