"""A quantized network whose scales, weights and biases can be learned.

Each activation's scale is one number for all points that share it, by its logarithm (learned step
sizes; Esser et al. 2020). Biases and weights of few bits are learned in codes, so that one learning
rate suits every layer. All is rounded as in the file; the gradient passes straight through that.
Zero points stay, and with them the real zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from qtool.algorithms.pipeline import ConversionState
from qtool.calibration.activation_rescaling import rescale_activations
from qtool.calibration.portable_scales import make_portable
from qtool.calibration.scale_alignment import clamp_limits
from qtool.calibration.solve_parameters import BIAS_LIMIT
from qtool.core import graph as G
from qtool.core.types import Derived, Observed, QuantParams, Requantized
from qtool.planning.fake_quantize import insert_points, quant_points
from qtool.planning.plan import Kind, Point, QuantPlan

MAX_LOG_SCALE = 1.0
"""How far the logarithm of a scale may go; further is another network, and biases may overflow."""

CLAMP_MARGIN = 1e-6  # to the bound of a clamp, for the rounding of scales

FROZEN_WEIGHT_BITS = 8  # from which on the noise of weights is far below that of activations
GRID_SAMPLES = 32  # samples that show whether values lie on a grid
GRID_NOISE = 0.25  # of the noise that rounding makes of values anywhere
BIAS_CODES = 32.0  # of its int32 grid, about, are one step of the layer's results

Trained = dict[str, nn.Parameter]


class _Rounded(torch.autograd.Function):
    """Fake quantization with a gradient to its scale, which has rank 0."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, q: QuantParams) -> Any:
        steps = x / scale
        whole = steps.round()
        kept = whole.clamp(*_code_range(q))
        inside = kept == whole
        ctx.save_for_backward(inside, torch.where(inside, kept - steps, kept))
        return kept * scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        inside, by_scale = ctx.saved_tensors
        return gradients[0] * inside, (gradients[0] * by_scale).sum(), None


def _code_range(q: QuantParams) -> tuple[float, float]:
    """The lowest and the highest code less the zero point, which is one for the tensor."""
    zero = float(q.zero_point)
    return q.qtype.qmin - zero, q.qtype.qmax - zero


class _Activation(nn.Module):
    def __init__(self, params: QuantParams, log: nn.Parameter, most: float) -> None:
        super().__init__()
        self.params, self.log, self.most = params, log, most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float32 in and out, of the same shape."""
        scale = self.params.scale * self.log.clamp(-MAX_LOG_SCALE, self.most).exp()
        found: torch.Tensor = _Rounded.apply(  # type: ignore[no-untyped-call]  # torch's own
            x, scale, self.params
        )
        return found


class _Weight(nn.Module):
    """Weights in codes less their zero points, in place of the constant."""

    def __init__(self, params: QuantParams, codes: nn.Parameter) -> None:
        super().__init__()
        scale = params.along(params.scale, codes.shape)
        zero = params.along(params.zero_point, codes.shape).to(codes.dtype)
        self.scale, self.codes = scale, codes
        self.low, self.high = params.qtype.qmin - zero, params.qtype.qmax - zero

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        """The learned weights instead of the constant, on their grid."""
        codes = self.codes.clamp(self.low, self.high)
        return (codes + (codes.round() - codes).detach()) * self.scale


class _Bias(nn.Module):
    """A bias as what was added to it, in codes of the layer's results."""

    def __init__(self, added: nn.Parameter, unit: torch.Tensor) -> None:
        super().__init__()
        self.added, self.unit = added, unit

    def forward(self, constant: torch.Tensor) -> torch.Tensor:
        return constant + self.added * self.unit


@dataclass(frozen=True, eq=False)
class TrainableGraph:
    """A module to train, and what of it is learned: by the root point of the activations, and by
    the points of weights and biases. most: of the logarithms of scales, by the same."""

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

    def apply_to(self, state: ConversionState, share: float = 1.0) -> ConversionState:
        """The conversion with what was learned, as it is rounded; of scales, and of biases beside
        weights that stay, a share."""
        assert state.parameters is not None
        rescaled_params = _trained_params(state, self.scales, self.max_logs, share)
        params, _ = make_portable(state.graph.graph, state.plan, rescaled_params)
        nodes = {G.name_of(n): n for n in state.graph.graph.nodes}
        module = G.clone(state.graph.module)
        inside = {G.name_of(n): n for n in module.graph.nodes}
        for name, codes in self.weights.items():
            tensor, p = state.plan.point(name).tensor, params[name]
            old = G.tensor(state.graph.module, nodes[tensor]).detach()
            found = codes.detach() * p.along(p.scale, old.shape)
            G.set_tensor(module, inside[tensor], p.round_trip(found).to(old))
        for name, added in self.biases.items():
            point = state.plan.point(name)
            assert isinstance(point.spec, Derived)
            part = 1.0 if point.spec.weight in self.weights else share
            old = G.tensor(state.graph.module, nodes[point.tensor]).detach()
            more = added.detach() * part * self.units[name]
            G.set_tensor(module, inside[point.tensor], old + more.to(old))
        parameters = replace(state.parameters, params=params)
        return replace(state, graph=replace(state.graph, module=module), parameters=parameters)


def make_trainable(state: ConversionState) -> TrainableGraph:
    """A copy of the quantized network, as the conversion has it, that can be trained.

    Learned are scales of activations, biases, and weights of fewer than 8 bits; not what several
    layers own, and no scale from which another one follows.
    """
    assert state.parameters is not None
    module = insert_points(state.graph.module, state.plan)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    params = state.parameters.params
    scales, layers = _free_scales(state), _exclusive_weights(state)
    found = TrainableGraph(module, {}, _max_logs(state, scales), {}, {}, {})
    for name, place in quant_points(module).items():
        point, root = state.plan.point(name), state.plan.root(name)
        place.set_params(params[name])
        if root in scales:
            log = found.scales.setdefault(root, nn.Parameter(torch.zeros(())))
            _replace_module(module, place, _Activation(params[name], log, found.max_logs[root]))
        elif name in layers and params[name].qtype.bits < FROZEN_WEIGHT_BITS:
            scale = params[name].along(params[name].scale, _constant(state, point).shape)
            found.weights[name] = nn.Parameter(_constant(state, point) / scale)
            _replace_module(module, place, _Weight(params[name], found.weights[name]))
        elif isinstance(point.spec, Derived) and point.spec.weight in layers:
            found.units[name] = params[name].scale * BIAS_CODES
            found.biases[name] = nn.Parameter(torch.zeros_like(_constant(state, point)))
            _replace_module(module, place, _Bias(found.biases[name], found.units[name]))
    return found


def _replace_module(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    path = next(path for path, each in module.named_modules() if each is old)
    parent, _, leaf = path.rpartition(".")
    setattr(module.get_submodule(parent), leaf, new)


def _constant(state: ConversionState, point: Point) -> torch.Tensor:
    nodes = {G.name_of(n): n for n in state.graph.graph.nodes}
    return G.tensor(state.graph.module, nodes[point.tensor]).detach()


def _free_scales(state: ConversionState) -> set[str]:
    """The points whose scales can be chosen freely: no other type is made of their codes, and they
    do not fit the values already."""
    again = {state.plan.root(p.spec.point) for p in state.plan if isinstance(p.spec, Requantized)}
    again |= _inputs_on_grid(state)
    return {
        p.name
        for p in state.plan
        if p.kind is Kind.ACTIVATION and isinstance(p.spec, Observed) and p.name not in again
    }


def _inputs_on_grid(state: ConversionState) -> set[str]:
    """Inputs whose values lie on the grid of their codes, as features of a sensor may: any other
    scale makes noise of them, and no gradient leads back."""
    assert state.parameters is not None
    found = set()
    for batch in state.batches(limit=GRID_SAMPLES):
        names = (G.name_of(n) for n in G.placeholders(state.graph.graph))
        for name, values in zip(names, state.graph.tensors_of(batch), strict=True):
            params = state.parameters.params.get(name)
            if params is not None and values.is_floating_point():
                off = (values - params.round_trip(values)) / params.scale
                if float(off.square().mean()) < GRID_NOISE / 12:
                    found.add(name)
    return found


def _max_logs(state: ConversionState, scales: Set[str]) -> dict[str, float]:
    """How far the logarithms of scales may go up. The codes of a tensor behind a clamp stand for
    it, and reach no further than it lets through: else the runtime has to clamp in float."""
    assert state.parameters is not None
    found = dict.fromkeys(scales, MAX_LOG_SCALE)
    nodes = {G.name_of(n): n for n in state.graph.graph.nodes}
    for name, bounds in clamp_limits(state.plan, nodes).items():
        if name not in found:
            continue
        params = state.parameters.params[name]
        for bound, end in zip(bounds, _code_range(params), strict=True):
            if end and math.isfinite(bound):
                room = bound / (float(params.scale) * end)
                found[name] = min(
                    found[name], math.log(room) - CLAMP_MARGIN if room > 1 + CLAMP_MARGIN else 0.0
                )
    return found


def _exclusive_weights(state: ConversionState) -> set[str]:
    """The points of weights whose tensors, and whose biases, are of one layer alone."""
    graph = state.graph.graph
    uses = Counter(str(n.target) for n in graph.nodes if n.op == "get_attr" for _ in n.users)
    nodes = {G.name_of(n): n for n in graph.nodes}
    owned = {p.name: uses[str(nodes[p.tensor].target)] == 1 for p in state.plan if p.edges}
    return {
        p.name
        for p in state.plan
        if p.kind is Kind.WEIGHT
        and isinstance(p.spec, Observed)
        and owned.get(p.name)
        and all(owned[b.name] for b in _biases(state.plan, p.name))
    }


def _biases(plan: QuantPlan, weight: str) -> list[Point]:
    return [p for p in plan if isinstance(p.spec, Derived) and p.spec.weight == weight]


def _trained_params(
    state: ConversionState, scales: Trained, most: Mapping[str, float], share: float
) -> dict[str, QuantParams]:
    """Parameters with the learned scales; a scale with which a bias would need more than its share
    of an accumulator stays as it was."""
    assert state.parameters is not None
    old = state.parameters.params
    logs = {n: log.detach().clamp(-MAX_LOG_SCALE, most[n]) for n, log in scales.items()}
    factors = {n: (log * share).exp() for n, log in logs.items()}
    for point in state.plan:
        if not isinstance(point.spec, Derived) or not point.edges:
            continue
        root = state.plan.root(point.spec.input)
        scale = old[point.name].scale * factors.get(root, 1.0) * BIAS_LIMIT
        if bool((_constant(state, point).abs() > scale).any()):
            factors.pop(root, None)
    return rescale_activations(state.plan, old, {root: float(f) for root, f in factors.items()})
