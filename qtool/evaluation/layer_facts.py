"""Layers of a quantized model, and the facts about each that a report shows.

A layer is an integer operator with its quantization points: on its constants and on its output,
through a fused clamp and operators that only move data. Points on its inputs belong to the layers
that produce them, so that every point has exactly one owner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import fx

from qtool.conversion.quantized import Quantized
from qtool.core import graph as G
from qtool.core.ops import Role, row_of
from qtool.core.quant_params import ROUNDED, QuantParams
from qtool.core.types import Array, Dynamic
from qtool.evaluation.measure.layer_errors import HistogramFacts
from qtool.observers.histogram import Histogram
from qtool.planning.plan import Decision, Execution, Kind

BINS = 64


@dataclass(frozen=True)
class Layer:
    """One layer, or one input of the model (op "input").

    Attributes:
        tensor: node of its output, after a fused clamp.
        points: all points that are off when the layer is in float.
        weight, output: points of its weight and of its output; None if it has none.
    """

    name: str
    op: str
    tensor: str
    points: frozenset[str]
    weight: str | None
    output: str | None
    macs: int


def layers_of(quantized: Quantized) -> tuple[Layer, ...]:
    """Return the layers in order of computation, inputs first; together they own every point."""
    plan, graph = quantized.plan, quantized.graph.graph
    decisions = {d.node: d for d in plan.nodes}
    owner: dict[str, str] = {}  # node -> the layer that produces its value
    for node in graph.nodes:
        owner[G.name_of(node)] = _owner(node, decisions.get(G.name_of(node)), owner)
    points: dict[str, set[str]] = {}
    for point in plan:
        if point.kind is Kind.ACTIVATION and not isinstance(point.spec, Dynamic):
            points.setdefault(owner[point.tensor], set()).add(point.name)
        elif point.edges:
            points.setdefault(point.edges[0].user, set()).add(point.name)
    fused = {owner[d.node]: d.node for d in plan.nodes if d.execution is Execution.FUSED}
    tensors = {d.node: d.node for d in plan.nodes} | fused  # the last clamp of each layer
    layers = []
    inputs = [G.name_of(n) for n in G.placeholders(graph)]
    for name in [n for n in inputs if n in points] + [d.node for d in plan.nodes]:
        decision = decisions.get(name)
        owned = points.get(name)
        if not owned:
            continue
        tensor = tensors.get(name, name)
        layers.append(
            Layer(
                name,
                "input" if decision is None else decision.op,
                tensor,
                frozenset(owned),
                f"{name}.weight" if f"{name}.weight" in owned else None,
                tensor if tensor in owned else None,
                0 if decision is None else decision.macs,
            )
        )
    return tuple(layers)


def _owner(node: fx.Node, decision: Decision | None, owner: dict[str, str]) -> str:
    """Return the layer of a node; a fused clamp or pass-through belongs to that of its input."""
    row = row_of(node)
    fused = decision is not None and decision.execution is Execution.FUSED
    if (fused or (row is not None and row.role is Role.PASS)) and isinstance(node.args[0], fx.Node):
        return owner[G.name_of(node.args[0])]
    return G.name_of(node)


def code_limits(params: QuantParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lowest and highest real value of the quantized range per channel, as float64."""
    scale, zero = params.scale.double(), params.zero_point.double()
    return (params.qtype.qmin - zero) * scale, (params.qtype.qmax - zero) * scale


def count_saturated(x: torch.Tensor, params: QuantParams) -> int:
    """Return the number of elements more than half a step, see `ROUNDED`, outside the range."""
    low, high = code_limits(params)
    step = params.scale.double() * ROUNDED
    lowest, highest = low - step, high + step
    lowest, highest = (params.along(end, x.shape) for end in (lowest, highest))
    return int(((x < lowest.float()) | (x > highest.float())).sum())


def histogram_facts(
    histogram: Histogram, params: QuantParams | None, clipped: float
) -> HistogramFacts | None:
    """Return the facts of a streamed histogram; None if it is empty."""
    if histogram.empty:
        return None
    bins = next(histogram.channel_bins())
    low, high = (
        (torch.zeros(1),) * 2 if params is None else map(torch.atleast_1d, code_limits(params))
    )
    return HistogramFacts(
        float(bins.edges[0]),
        float(bins.edges[-1]),
        tuple(int(c) for c in bins.counts),
        bins.low,
        bins.high,
        float(low.min()),
        float(high.max()),
        float(low.max()),
        float(high.min()),
        clipped,
    )


def weight_histogram(weight: torch.Tensor, params: QuantParams) -> HistogramFacts | None:
    """Return the histogram of a weight."""
    histogram = Histogram(None, bins=BINS)
    histogram.update(weight)
    return histogram_facts(
        histogram, params, count_saturated(weight, params) / max(1, weight.numel())
    )


def signal_and_noise(expected: torch.Tensor, actual: torch.Tensor) -> Array:
    """Return [sum of squares, sum of squared differences], in float64 if float32 overflows."""
    before, after = expected.reshape(-1), actual.reshape(-1)
    sums = np.array([_square(before), _square(before - after)])
    if np.isfinite(sums).all() or before.dtype is torch.float64:
        return sums
    return signal_and_noise(before.double(), after.double())


def _square(x: torch.Tensor) -> float:
    return float(torch.dot(x, x))
