"""The step `smooth-quant`: activation ranges of wide channels are moved into the weights.

y = W x = (W s) (x / s), as in SmoothQuant (Xiao et al. 2022): x has one range, which the division
frees from its wide channels; the weights have a range per output channel and absorb the factors.
The division is folded into the operator that computes x where that has its own constants and no
other reader; elsewhere it is a float multiplication before the quantization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.pipeline import Step
from qtool.algorithms.smooth_quant.smoothing_targets import SmoothingTarget, smoothing_targets
from qtool.calibration.calibration import Calibration
from qtool.core import graph as G
from qtool.core.errors import VerificationError
from qtool.core.types import Change, ObserverSpec
from qtool.observers.min_max import MinMax
from qtool.planning.plan import Probe, QuantPlan

Factors = Mapping[str, torch.Tensor]
"""Tensor name -> divisors of its channels, float32 [channels]."""

REASON = "wide channels of a linear layer's input are moved into its weights"

STRENGTH = 0.85  # alpha of the paper: share of the channel ranges that moves into the weights
WORTH = 3.0  # least ratio of the widest channel to the median; below it, smoothing gains little
SMALLEST = 1e-5  # of the widest channel; a channel that was always zero is not scaled up

aten = torch.ops.aten


def _probes(graph: fx.Graph, plan: QuantPlan) -> Sequence[Probe]:
    """Return probes for the channel extremes of the tensors that can be smoothed."""
    spec = ObserverSpec("minmax")
    return [
        Probe(_probe_name(t.source), t.source, spec, axis=-1)
        for t in smoothing_targets(graph, plan)
    ]


def _run(state: ConversionState) -> ConversionState:
    factors = _find_factors(state)
    if not factors:
        return state
    return _apply(state, Change(SMOOTH_QUANT.name, len(factors), REASON, factors))


def _apply(state: ConversionState, change: Change) -> ConversionState:
    """Return the state with tensors divided by the factors of a change."""
    targets = [
        t for t in smoothing_targets(state.graph.graph, state.plan) if t.source in change.arrays
    ]
    if len(targets) != len(change.arrays):
        raise VerificationError(
            "the smoothing that the file records does not fit this model: it has other layers"
        )
    names: dict[str, str] = {}

    def edit(module: fx.GraphModule) -> int:
        names.update(_smooth(module, targets, change.arrays))
        return len(names)

    after = state.apply_edit(change, edit)
    if state.calibration is None:
        return after
    return replace(after, calibration=_smooth_ranges(state.calibration, change.arrays, names))


SMOOTH_QUANT = Step("smooth-quant", _run, _probes, replay=_apply)


def _probe_name(source: str) -> str:
    return f"{source}.channels"


def _find_factors(state: ConversionState) -> Factors:
    """Return the factors of the tensors whose channel ranges differ enough."""
    assert state.calibration is not None
    module = state.graph.module
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    factors = {}
    for each in smoothing_targets(module.graph, state.plan):
        extremes = state.calibration.statistics.get(_probe_name(each.source))
        if not isinstance(extremes, MinMax) or extremes.empty:
            continue
        low, high = extremes.extent()
        size = torch.maximum(low.abs(), high.abs())
        if extremes.rows < len(size):
            continue  # too few rows: new ones would exceed the extremes of some channel
        if float(size.max()) > 0 and float(size.max()) >= WORTH * float(size.median()):
            layers = [nodes[name] for name in each.layers]
            factors[each.source] = _factors(module, size, layers)
    return factors


def _smooth(
    module: fx.GraphModule, targets: Sequence[SmoothingTarget], factors: Factors
) -> dict[str, str]:
    """Divide tensors by their factors, in place, and multiply the weights of their readers.

    Return the name of each smoothed tensor: its own, or that of the new multiplication.
    """
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    names = {}
    for each in targets:
        source, factor = nodes[each.source], factors[each.source]
        readers = [nodes[name] for name in each.readers]
        for layer in each.layers:
            _scale(module, _weight(nodes[layer]), factor)
        folded = set(source.users) == set(readers) and _fold(module, source, factor)
        name = each.source if folded else G.name_of(_divide(module, source, readers, factor))
        names[each.source] = name
    return names


def _smooth_ranges(
    calibration: Calibration, factors: Factors, names: Mapping[str, str]
) -> Calibration:
    """Return the calibration with the ranges of smoothed tensors, from their channel extremes."""
    specs, statistics = dict(calibration.specs), dict(calibration.statistics)
    for source, name in names.items():
        extremes = calibration.statistics[_probe_name(source)]
        assert isinstance(extremes, MinMax)
        low, high = extremes.extent()
        by, range_ = factors[source].double(), MinMax(None)
        range_.update(torch.stack([low / by, high / by]).float())
        specs[name], statistics[name] = ObserverSpec("minmax"), range_
    return replace(calibration, specs=specs, statistics=statistics)


def _factors(module: fx.GraphModule, channels: torch.Tensor, layers: list[fx.Node]) -> torch.Tensor:
    """Return factors, float32 [in], geometric mean 1, from the ranges of channels and weights."""
    weights = [G.tensor(module, _weight(n)).detach().double().cpu() for n in layers]
    columns = torch.cat([w.abs().flatten(0, -2) for w in weights]).amax(0)
    channels = channels.clamp(min=SMALLEST * float(channels.max()))
    columns = columns.clamp(min=SMALLEST * float(columns.max()) or 1.0)
    logs = STRENGTH * channels.log() - (1 - STRENGTH) * columns.log()
    return (logs - logs.mean()).exp().float()


def _weight(layer: fx.Node) -> fx.Node:
    weight = layer.args[1]
    assert isinstance(weight, fx.Node)
    return weight


def _scale(module: fx.GraphModule, constant: fx.Node, factor: torch.Tensor) -> None:
    """Multiply a constant by a vector along its last dimension, in place."""
    old = G.tensor(module, constant).detach()
    G.set_tensor(module, constant, old * factor.to(old.device, old.dtype))


CONSTANTS: Mapping[object, tuple[int, ...]] = {
    aten.layer_norm.default: (2, 3),
    aten.rms_norm.default: (2,),
    aten.mul.Tensor: (0, 1),  # the end of an RMSNorm that is written out
}
"""Operators that a division can be folded into -> arguments that may be constants."""


def _fold(module: fx.GraphModule, source: fx.Node, factor: torch.Tensor) -> bool:
    """Divide the constants of the operator that computes `source`, if it has its own."""
    places = CONSTANTS.get(source.target, ())
    operands = [
        source.args[i] for i in places if i < len(source.args) and source.args[i] is not None
    ]
    constants = [n for n in operands if isinstance(n, fx.Node) and n.op == "get_attr"]
    expected = 1 if source.target is aten.mul.Tensor else len(operands)
    fits = [n for n in constants if G.shape(n) == tuple(factor.shape) and _has_one_reader(n)]
    if not operands or not len(fits) == len(constants) == expected:
        return False
    for each in constants:
        _scale(module, each, 1 / factor)
    return True


def _has_one_reader(constant: fx.Node) -> bool:
    same = [n for n in constant.graph.nodes if n.op == "get_attr" and n.target == constant.target]
    return len(same) == 1 and len(constant.users) == 1


def _divide(
    module: fx.GraphModule, source: fx.Node, readers: list[fx.Node], factor: torch.Tensor
) -> fx.Node:
    """Insert a multiplication between `source` and these readers."""
    name = f"{G.name_of(source)}.smooth"
    first = next(n for n in module.graph.nodes if n in readers)
    inverse = G.add_tensor(module, first, (1 / factor).to(G.value(source).dtype), f"{name}.factors")
    product = G.add_call(first, aten.mul.Tensor, (source, inverse), name, source)
    for reader in readers:
        reader.replace_input_with(source, product)
    return product
