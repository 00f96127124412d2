"""The step `renorm`: each channel of a layer's result gets the mean and the width it had in float.

Re-estimation of BatchNorm (Finkelstein et al. 2019 correct the means so; Sun et al. 2019 and
CalibTIP, Hubara et al. 2020, the variances, too) for norms that are folded into their layers: the
scale of a channel's weights takes the ratio of the widths, which changes no code and costs nothing,
and the bias what is left of the mean. Layer by layer in order, on kept samples, each layer being
fed by those before it as they are by then. It shows where weights have few bits, and is taken if
samples kept aside come nearer to the float network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from qtool.algorithms.acceptance import output_noise, quantized_module
from qtool.algorithms.exclusive_layers import (
    attribute_name,
    constant_value,
    exclusive_layers,
    point_params,
    with_constants,
)
from qtool.algorithms.pipeline import ConversionState, Step
from qtool.algorithms.skip_on_failure import LESS_ACCURATE, NO_SAMPLES
from qtool.calibration.solve_parameters import BIAS_LIMIT
from qtool.core.graph.executor import Executor
from qtool.core.graph.node_calls import Values
from qtool.core.types import Change, Derived, Observed, QuantParams

NAME = "batch-norm-reestimation"
REASON = "channels of layers have the mean and the width they had in float"

SAMPLES = 256
ELEMENTS = 1 << 27  # of all values that are held at once, in both networks; fewer samples then
BATCH, HOLDOUT_SAMPLES = 32, 256
MAX_RATIO = 2.0  # ratio of widths; a channel that differs by more is broken otherwise

aten = torch.ops.aten


@dataclass
class _LayerWalk:
    """A walk through both networks, and what it found."""

    state: ConversionState
    executor: Executor
    layers: Mapping[str, fx.Node]
    weights: dict[str, torch.Tensor] = field(default_factory=dict)  # attribute -> value
    params: dict[str, QuantParams] = field(default_factory=dict)

    def visit(
        self, names: Sequence[str], values: Sequence[Sequence[Values]]
    ) -> Mapping[str, torch.Tensor]:
        return {k: v for name in names for k, v in self._visited(name, values).items()}

    def _visited(self, name: str, values: Sequence[Sequence[Values]]) -> Mapping[str, torch.Tensor]:
        node, number = self.layers[name], self.executor.indices[name]
        channel = -1 if node.target is aten.linear.default else 1
        points = self.executor.points
        mean, width = _moments([row[number] for row in values[0]], channel)
        found = [self.executor.compute(name, row, points) for row in values[1]]
        off, spread = _moments(found, channel)
        usable = (width > 0) & (spread > 0)
        ratio = torch.where(usable, width / spread.clamp(min=1e-30), 1.0)
        return self._taken(name, ratio.clamp(1 / MAX_RATIO, MAX_RATIO), mean, off)

    def _taken(
        self, name: str, ratio: torch.Tensor, mean: torch.Tensor, off: torch.Tensor
    ) -> Mapping[str, torch.Tensor]:
        """Weights times the ratio, and a bias with which the mean is the wanted one, if it fits."""
        node, old = self.layers[name], self.state.parameters
        assert old is not None
        weight, bias = (constant_value(self.state, node, at) for at in (1, 2))
        weights, biases = old.params[f"{name}.weight"], old.params[f"{name}.bias"]
        held = biases.round_trip(bias).double()
        wanted = (held * ratio + mean - off * ratio).float()
        spec = self.state.plan.point(f"{name}.bias").spec
        assert isinstance(spec, Derived)
        scale = weights.scale * ratio.float()
        steps = old.params[spec.input].scale * scale
        if bool((wanted.abs() > steps * BIAS_LIMIT).any()):
            return {}
        weights, biases = replace(weights, scale=scale), replace(biases, scale=steps)
        taken = weight * weights.along(ratio.float(), weight.shape)
        self.params |= {f"{name}.weight": weights, f"{name}.bias": biases}
        self.weights |= {attribute_name(node, 1): taken, attribute_name(node, 2): wanted}
        return {
            f"{name}.weight": weights.round_trip(taken),
            f"{name}.bias": biases.round_trip(wanted),
        }


def _moments(batches: Sequence[torch.Tensor], channel: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation by channel: float64."""
    lines = [b.movedim(channel, 0).flatten(1).double() for b in batches]
    count = sum(x.shape[1] for x in lines)
    mean = torch.stack([x.sum(1) for x in lines]).sum(0) / count
    squares = torch.stack([(x - mean[:, None]).square().sum(1) for x in lines]).sum(0)
    return mean, (squares / count).sqrt()


def _layers(state: ConversionState) -> dict[str, fx.Node]:
    """Layers with a scale for each channel of their results and with a bias in codes."""
    found = {}
    for name, node in exclusive_layers(state).items():
        weight = state.plan.point(f"{name}.weight")
        if f"{name}.bias" not in state.plan or not isinstance(weight.spec, Observed):
            continue
        plain = weight.spec.axis is not None and weight.spec.block is None
        one = len(point_params(state, weight.name).scale) == len(constant_value(state, node, 2))
        if plain and one and isinstance(state.plan.point(f"{name}.bias").spec, Derived):
            found[name] = node
    return found


def _run(state: ConversionState) -> ConversionState:
    judges = state.batches(BATCH, HOLDOUT_SAMPLES, holdout=True)
    before = quantized_module(state)
    executor = Executor(replace(state.graph, module=before))
    most = min(SAMPLES, ELEMENTS // max(1, 2 * executor.live_elements()))
    samples = state.batches(BATCH, max(most, 1))
    if not samples or not judges:
        return state.with_notes(f"{NAME}: {NO_SAMPLES}")
    walk = _LayerWalk(state, executor, _layers(state))
    networks = [frozenset[str](), executor.points]
    executor.run_side_by_side(samples, networks, dict.fromkeys(walk.layers, ()), walk.visit)
    after = _with_statistics(state, walk)
    old, new = output_noise(state, [before, quantized_module(after)], judges)
    return after if new < old else state.with_notes(f"{NAME}: {LESS_ACCURATE}")


def _with_statistics(state: ConversionState, walk: _LayerWalk) -> ConversionState:
    assert state.parameters is not None
    params = replace(state.parameters, params={**state.parameters.params, **walk.params})
    changed = replace(with_constants(state, walk.weights), parameters=params)
    return changed.with_change(Change(NAME, len(walk.params) // 2, REASON))


BATCH_NORM_REESTIMATION = Step(NAME, _run, accuracy="", samples=SAMPLES)
