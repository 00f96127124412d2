"""The step `batch-norm-reestimation`: each channel gets its float mean and standard deviation.

Re-estimation of BatchNorm statistics (Finkelstein et al. 2019 correct the means; Sun et al. 2019
and CalibTIP, Hubara et al. 2020, also the variances) for norms that are folded into their layers:
the weight scale of a channel takes the ratio of the standard deviations, which changes no code and
costs nothing, and the bias takes the rest of the mean. Layers are corrected in order, on kept
samples, each with the results of the corrected layers before it. It helps low-bit weights, and is
kept if it reduces the output noise on held-out samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from qtool.algorithms.acceptance import quantized_module
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.exclusive_layers import LayerCall, exclusive_layers, with_constants
from qtool.algorithms.registry import BATCH_NORM_REESTIMATION
from qtool.calibration.solve_parameters import BIAS_LIMIT
from qtool.core.graph.executor import Executor
from qtool.core.graph.levels import run_by_levels
from qtool.core.graph.node_calls import Values
from qtool.core.quant_params import QuantParams
from qtool.core.types import Change, Derived, Observed

REASON = "channels of layers have their float mean and standard deviation"

ELEMENTS = 1 << 27  # of all values held at once, in both networks; beyond, fewer samples are used
BATCH = 32
MAX_RATIO = 2.0  # of standard deviations; a channel beyond has another problem

aten = torch.ops.aten


@dataclass
class _LayerWalk:
    """One pass over the layers of both networks, and the constants it found."""

    state: ConversionState
    executor: Executor
    calls: Mapping[int, LayerCall]
    weights: dict[str, torch.Tensor] = field(default_factory=dict)  # attribute -> value
    params: dict[str, QuantParams] = field(default_factory=dict)

    def visit(
        self, numbers: Sequence[int], values: Sequence[Sequence[Values]]
    ) -> Mapping[int, torch.Tensor]:
        return {k: v for i in numbers for k, v in self._correct(self.calls[i], values).items()}

    def _correct(
        self, call: LayerCall, values: Sequence[Sequence[Values]]
    ) -> Mapping[int, torch.Tensor]:
        layer, number = call.layer, call.number
        channel = -1 if layer.node.target is aten.linear.default else 1
        points = self.executor.points
        mean, std = _moments([row[number] for row in values[0]], channel)
        results = [self.executor.compute(layer.name, row, points) for row in values[1]]
        coded_mean, coded_std = _moments(results, channel)
        usable = (std > 0) & (coded_std > 0)
        ratio = torch.where(usable, std / coded_std.clamp(min=1e-30), 1.0)
        return self._store(call, ratio.clamp(1 / MAX_RATIO, MAX_RATIO), mean, coded_mean)

    def _store(
        self, call: LayerCall, ratio: torch.Tensor, mean: torch.Tensor, coded_mean: torch.Tensor
    ) -> Mapping[int, torch.Tensor]:
        """Scale the weights by the ratio and set the mean by the bias, if it fits."""
        layer, name, solved = call.layer, call.layer.name, self.state.parameters
        weights, biases = layer.weight_params, layer.bias_params
        assert solved is not None
        assert biases is not None
        assert layer.bias is not None
        weight, bias = layer.weight.cpu(), layer.bias.cpu()
        coded_bias = biases.round_trip(bias).double()
        new_bias = (coded_bias * ratio + mean - coded_mean * ratio).float()
        spec = self.state.plan.point(f"{name}.bias").spec
        assert isinstance(spec, Derived)
        scale = weights.scale * ratio.float()
        steps = solved.params[spec.input].scale * scale
        if bool((new_bias.abs() > steps * BIAS_LIMIT).any()):
            return {}
        weights, biases = replace(weights, scale=scale), replace(biases, scale=steps)
        new_weight = weight * weights.along(ratio.float(), weight.shape)
        self.params |= {f"{name}.weight": weights, f"{name}.bias": biases}
        self.weights |= {layer.attribute(1): new_weight, layer.attribute(2): new_bias}
        return {
            call.operands[1]: weights.round_trip(new_weight),
            call.operands[2]: biases.round_trip(new_bias),
        }


def _moments(batches: Sequence[torch.Tensor], channel: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and standard deviation of each channel, float64."""
    lines = [b.movedim(channel, 0).flatten(1).double() for b in batches]
    count = sum(x.shape[1] for x in lines)
    mean = torch.stack([x.sum(1) for x in lines]).sum(0) / count
    squares = torch.stack([(x - mean[:, None]).square().sum(1) for x in lines]).sum(0)
    return mean, (squares / count).sqrt()


def _calls(state: ConversionState, run: Executor) -> dict[int, LayerCall]:
    """Return the layers with a weight scale per output channel and a quantized bias."""
    calls = {}
    for name, layer in exclusive_layers(state).items():
        weight = state.plan.point(f"{name}.weight")
        if layer.bias is None or layer.bias_params is None or not isinstance(weight.spec, Observed):
            continue
        plain = weight.spec.axis is not None and weight.spec.block is None
        one = len(layer.weight_params.scale) == len(layer.bias)
        if plain and one and isinstance(state.plan.point(f"{name}.bias").spec, Derived):
            call = LayerCall.of(layer, run)
            calls[call.number] = call
    return calls


def propose(state: ConversionState) -> ConversionState:
    """Return the state with the float mean and standard deviation of channels."""
    executor = Executor(replace(state.graph, module=quantized_module(state)))
    limit = min(BATCH_NORM_REESTIMATION.samples, ELEMENTS // max(1, 2 * executor.live_elements()))
    samples = state.batches(BATCH, max(limit, 1))
    if not samples or not state.batches(BATCH, BATCH_NORM_REESTIMATION.judges, holdout=True):
        return state.without_samples(BATCH_NORM_REESTIMATION.name)
    walk = _LayerWalk(state, executor, _calls(state, executor))
    run_by_levels(executor, samples, dict.fromkeys(walk.calls, ()), walk.visit)
    return _with_statistics(state, walk)


def _with_statistics(state: ConversionState, walk: _LayerWalk) -> ConversionState:
    assert state.parameters is not None
    params = replace(state.parameters, params={**state.parameters.params, **walk.params})
    changed = replace(with_constants(state, walk.weights), parameters=params)
    return changed.with_change(Change(BATCH_NORM_REESTIMATION.name, len(walk.params) // 2, REASON))
