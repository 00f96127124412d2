"""A quantized network with trainable scales, weights and biases (LSQ).

The scale of an activation is one parameter for all points that share it, stored as its logarithm
(learned step size quantization, LSQ; Esser et al. 2020). Biases and low-bit weights are trained in
codes, so that one learning rate suits every layer. Values are rounded as in the file, with a
straight-through gradient. Zero points are fixed, and so is the real zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.layer_rows import is_pruned
from qtool.calibration.portable_scales import make_portable, rescale_activations
from qtool.calibration.scale_alignment import clamp_limits
from qtool.calibration.solve_parameters import BIAS_LIMIT
from qtool.core import graph as G
from qtool.core.quant_params import QuantParams
from qtool.core.types import Derived, Observed, Requantized
from qtool.planning.fake_quantize import insert_points, quant_points
from qtool.planning.plan import Kind, Point, QuantPlan

MAX_LOG_SCALE = 1.0
"""Largest change of a scale's logarithm; beyond, biases may overflow."""

CLAMP_MARGIN = 1e-6  # below the bound of a clamp, as scales are rounded

FROZEN_WEIGHT_BITS = 8  # from here on the noise of weights is far below that of activations
GRID_SAMPLES = 32  # that show whether values lie on a grid
GRID_NOISE = 0.25  # of the rounding noise of arbitrary values
BIAS_CODES = 32.0  # of the int32 grid of a bias, about, are one step of the layer's results

Trained = dict[str, nn.Parameter]


class _Rounded(torch.autograd.Function):
    """Fake quantization with a gradient to its scale, which has rank 0."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, q: QuantParams) -> Any:
        steps = x / scale
        rounded = steps.round()
        codes = rounded.clamp(*_code_range(q))
        inside = codes == rounded
        ctx.save_for_backward(inside, torch.where(inside, codes - steps, codes))
        return codes * scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        inside, by_scale = ctx.saved_tensors
        return gradients[0] * inside, (gradients[0] * by_scale).sum(), None


def _code_range(q: QuantParams) -> tuple[float, float]:
    """Return the lowest and highest code less the zero point, of a tensor with one zero point."""
    zero = float(q.zero_point)
    return q.qtype.qmin - zero, q.qtype.qmax - zero


class _Activation(nn.Module):
    def __init__(self, params: QuantParams, log: nn.Parameter, max_log: float) -> None:
        super().__init__()
        self.params, self.log, self.max_log = params, log, max_log

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Fake-quantize float32 values with the trained scale."""
        scale = self.params.scale * self.log.clamp(-MAX_LOG_SCALE, self.max_log).exp()
        y: torch.Tensor = _Rounded.apply(x, scale, self.params)  # type: ignore[no-untyped-call]
        return y


class _Weight(nn.Module):
    """Replaces a constant by trained weights, stored as codes less their zero points."""

    def __init__(
        self, params: QuantParams, codes: nn.Parameter, zeros: torch.Tensor | None
    ) -> None:
        super().__init__()
        if zeros is not None:  # pruned weights: no gradient moves them
            codes.register_hook(lambda gradient: gradient.masked_fill(zeros, 0))
        scale = params.along(params.scale, codes.shape)
        zero = params.along(params.zero_point, codes.shape).to(codes.dtype)
        self.scale, self.codes = scale, codes
        self.low, self.high = params.qtype.qmin - zero, params.qtype.qmax - zero

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        """Return the trained weights on their grid; the constant is ignored."""
        codes = self.codes.clamp(self.low, self.high)
        return (codes + (codes.round() - codes).detach()) * self.scale


class _Bias(nn.Module):
    """Adds a trained offset to a bias, in multiples of `unit`."""

    def __init__(self, added: nn.Parameter, unit: torch.Tensor) -> None:
        super().__init__()
        self.added, self.unit = added, unit

    def forward(self, constant: torch.Tensor) -> torch.Tensor:
        return constant + self.added * self.unit


@dataclass(frozen=True, eq=False)
class TrainableGraph:
    """A quantized module and its trainable parameters.

    Attributes:
        scales: logarithms of the change of scales, by root point of the activations.
        max_logs: their upper bounds, likewise.
        weights: codes less zero points, by point.
        biases: offsets of biases, by point.
        units: what an offset of 1 stands for, by point.
    """

    module: fx.GraphModule
    scales: Trained
    max_logs: dict[str, float]
    weights: Trained
    biases: Trained
    units: dict[str, torch.Tensor]

    @property
    def kinds(self) -> dict[str, Trained]:
        return {"scales": self.scales, "weights": self.weights, "biases": self.biases}

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for each in self.kinds.values() for p in each.values()]

    @property
    def has_shares(self) -> bool:
        """Whether `share` makes a difference to `apply_to`."""
        return bool(self.scales or self.biases)

    def apply_to(self, state: ConversionState, share: float = 1.0) -> ConversionState:
        """Return the state with the trained values, rounded.

        Args:
            share: share of the change of scales that is applied, and of biases next to frozen
                weights.
        """
        assert state.parameters is not None
        rescaled_params = _trained_params(state, self.scales, self.max_logs, share)
        params, _ = make_portable(state.graph.graph, state.plan, rescaled_params)
        nodes = {G.name_of(n): n for n in state.graph.graph.nodes}
        module = G.clone(state.graph.module)
        inside = {G.name_of(n): n for n in module.graph.nodes}
        for name, codes in self.weights.items():
            tensor, p = state.plan.point(name).tensor, params[name]
            old = G.tensor(state.graph.module, nodes[tensor]).detach()
            values = codes.detach() * p.along(p.scale, old.shape)
            G.set_tensor(module, inside[tensor], p.round_trip(values).to(old))
        for name, added in self.biases.items():
            point = state.plan.point(name)
            assert isinstance(point.spec, Derived)
            part = 1.0 if point.spec.weight in self.weights else share
            old = G.tensor(state.graph.module, nodes[point.tensor]).detach()
            offset = added.detach() * part * self.units[name]
            G.set_tensor(module, inside[point.tensor], old + offset.to(old))
        parameters = replace(state.parameters, params=params)
        return replace(state, graph=replace(state.graph, module=module), parameters=parameters)


def make_trainable(state: ConversionState) -> TrainableGraph:
    """Return a trainable copy of the quantized network.

    Trainable are scales of activations, biases, and weights of fewer than 8 bits; not constants
    that several layers share, nor scales that others are derived from.
    """
    assert state.parameters is not None
    module = insert_points(state.graph.module, state.plan)
    for part in module.modules():  # the parameters themselves are those of the user's model
        for name, own in part._parameters.items():
            if own is not None:
                part._parameters[name] = nn.Parameter(own.detach(), requires_grad=False)
    params = state.parameters.params
    scales, layers = _free_scales(state), _exclusive_weights(state)
    trainable = TrainableGraph(module, {}, _max_logs(state, scales), {}, {}, {})
    for name, place in quant_points(module).items():
        point, root = state.plan.point(name), state.plan.root(name)
        place.set_params(params[name])
        if root in scales:
            log = trainable.scales.setdefault(
                root, nn.Parameter(torch.zeros((), dtype=torch.float32))
            )
            _replace_module(module, place, _Activation(params[name], log, trainable.max_logs[root]))
        elif name in layers and params[name].qtype.bits < FROZEN_WEIGHT_BITS:
            scale = params[name].along(params[name].scale, _constant(state, point).shape)
            trainable.weights[name] = nn.Parameter(_constant(state, point) / scale)
            zeros = _pruned(state, point)
            _replace_module(module, place, _Weight(params[name], trainable.weights[name], zeros))
        elif isinstance(point.spec, Derived) and point.spec.weight in layers:
            trainable.units[name] = params[name].scale * BIAS_CODES
            trainable.biases[name] = nn.Parameter(torch.zeros_like(_constant(state, point)))
            _replace_module(module, place, _Bias(trainable.biases[name], trainable.units[name]))
    return trainable


def _replace_module(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    path = next(path for path, each in module.named_modules() if each is old)
    parent, _, leaf = path.rpartition(".")
    setattr(module.get_submodule(parent), leaf, new)


def _constant(state: ConversionState, point: Point) -> torch.Tensor:
    nodes = {G.name_of(n): n for n in state.graph.graph.nodes}
    return G.tensor(state.graph.module, nodes[point.tensor]).detach()


def _pruned(state: ConversionState, point: Point) -> torch.Tensor | None:
    """Return the zeros of a weight that was pruned before it was rounded to zeros; None if not."""
    float_graph, weight = state.captured.graph, _constant(state, point)
    nodes = {G.name_of(n): n for n in float_graph.graph.find_nodes(op="get_attr")}
    if point.tensor not in nodes:
        return None
    node = nodes[point.tensor]
    exact, zeros = G.tensor(float_graph.module, node).detach(), weight == 0
    if not is_pruned(exact, next(iter(node.users))):
        return None
    return zeros & (exact == 0) if exact.shape == zeros.shape else zeros


def _free_scales(state: ConversionState) -> set[str]:
    """Return the points with free scales: their codes are not requantized to another type, and
    their values do not lie on the grid already."""
    fixed = {state.plan.root(p.spec.point) for p in state.plan if isinstance(p.spec, Requantized)}
    fixed |= _inputs_on_grid(state)
    if state.samples is not None:
        fixed |= {state.plan.root(name) for name in state.samples.shared}
    return {
        p.name
        for p in state.plan
        if p.kind is Kind.ACTIVATION and isinstance(p.spec, Observed) and p.name not in fixed
    }


def _inputs_on_grid(state: ConversionState) -> set[str]:
    """Return the inputs whose values lie on their grid, as features of a sensor may: any other
    scale adds noise, and no gradient leads back."""
    assert state.parameters is not None
    names_on_grid = set()
    for batch in state.batches(limit=GRID_SAMPLES):
        names = (G.name_of(n) for n in G.placeholders(state.graph.graph))
        for name, values in zip(names, state.graph.tensors_of(batch), strict=True):
            params = state.parameters.params.get(name)
            if params is not None and values.is_floating_point():
                error = (values - params.round_trip(values)) / params.scale
                if float(error.square().mean()) < GRID_NOISE / 12:
                    names_on_grid.add(name)
    return names_on_grid


def _max_logs(state: ConversionState, scales: Set[str]) -> dict[str, float]:
    """Return the upper bounds of the scales' logarithms.

    The codes of a tensor behind a clamp implement it, so that their range stays within its bounds:
    otherwise the runtime would clamp in float.
    """
    assert state.parameters is not None
    limits = dict.fromkeys(scales, MAX_LOG_SCALE)
    nodes = {G.name_of(n): n for n in state.graph.graph.nodes}
    for name, bounds in clamp_limits(state.plan, nodes).items():
        if name not in limits:
            continue
        params = state.parameters.params[name]
        for bound, end in zip(bounds, _code_range(params), strict=True):
            if end and math.isfinite(bound):
                ratio = bound / (float(params.scale) * end)
                growth = math.log(ratio) - CLAMP_MARGIN if ratio > 1 + CLAMP_MARGIN else 0.0
                limits[name] = min(limits[name], growth)
    return limits


def _exclusive_weights(state: ConversionState) -> set[str]:
    """Return the points of weights that one layer alone reads, like its biases."""
    graph = state.graph.graph
    reads = G.attribute_reads(graph)
    nodes = {G.name_of(n): n for n in graph.nodes}
    exclusive = {p.name: reads[str(nodes[p.tensor].target)] == 1 for p in state.plan if p.edges}
    return {
        p.name
        for p in state.plan
        if p.kind is Kind.WEIGHT
        and isinstance(p.spec, Observed)
        and exclusive.get(p.name)
        and all(exclusive[b.name] for b in _biases(state.plan, p.name))
    }


def _biases(plan: QuantPlan, weight: str) -> list[Point]:
    return [p for p in plan if isinstance(p.spec, Derived) and p.spec.weight == weight]


def _trained_params(
    state: ConversionState, scales: Trained, max_logs: Mapping[str, float], share: float
) -> dict[str, QuantParams]:
    """Return parameters with the trained scales, except where a bias would exceed its share of the
    accumulator."""
    assert state.parameters is not None
    old = state.parameters.params
    logs = {n: log.detach().clamp(-MAX_LOG_SCALE, max_logs[n]) for n, log in scales.items()}
    factors = {n: (log * share).exp() for n, log in logs.items()}
    for point in state.plan:
        if not isinstance(point.spec, Derived) or not point.edges:
            continue
        root = state.plan.root(point.spec.input)
        scale = old[point.name].scale * factors.get(root, 1.0) * BIAS_LIMIT
        if bool((_constant(state, point).abs() > scale).any()):
            factors.pop(root, None)
    return rescale_activations(state.plan, old, {root: float(f) for root, f in factors.items()})
