"""The step `smooth-quant`: activation ranges of wide channels are moved into the weights.

y = W x = (W s) (x / s), as in SmoothQuant (Xiao et al. 2022): x has one range, which the division
frees from its wide channels; the weights have a range per output channel and absorb the factors.
The division is folded into the operator that computes x where that has its own constants and no
other reader; elsewhere it is a float multiplication before the quantization.

One range for a whole tensor is as wide as its widest channel. Behind a LayerNorm or a GELU a few
channels are often ten times as wide as the others, which then share a tenth of the codes. Of a
recurrent layer with a float input the weights gain: one scale for a row is as wide as the weights
of channels that are nearly zero, and the others share what is left of the codes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.registry import SMOOTH_QUANT
from qtool.calibration.calibration import Calibration
from qtool.core import graph as G
from qtool.core.errors import VerificationError
from qtool.core.ops import row_of
from qtool.core.types import Change, Dynamic, Observed, ObserverSpec, SharedWith
from qtool.observers.min_max import MinMax
from qtool.planning.plan import Kind, Probe, QuantPlan
from qtool.planning.targets.rules import RECURRENT

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


REASON = "wide channels of a linear layer's input are moved into its weights"

STRENGTH = 0.85  # alpha of the paper: share of the channel ranges that moves into the weights

aten = torch.ops.aten
RESHAPES = (aten.reshape.default, aten.flatten.using_ints)


def probes(graph: fx.Graph, plan: QuantPlan) -> Sequence[Probe]:
    """Return probes for the channel extremes of the tensors that can be smoothed."""
    return [channel_probe(t.source) for t in smoothing_targets(graph, plan)]


def propose(state: ConversionState) -> ConversionState:
    """Return the state with the wide channels of layers' inputs moved into their weights."""
    factors = _find_factors(state)
    if not factors:
        return state
    return replay(state, Change(SMOOTH_QUANT.name, len(factors), REASON, factors))


def replay(state: ConversionState, change: Change) -> ConversionState:
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
    return replace(after, calibration=with_scaled_ranges(state.calibration, change.arrays, names))


def _find_factors(state: ConversionState) -> Factors:
    """Return the factors of the tensors whose channel ranges differ enough."""
    assert state.calibration is not None
    module = state.graph.module
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    factors = {}
    for each in smoothing_targets(module.graph, state.plan):
        size = unequal_channels(state.calibration, each.source)
        if size is not None:
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
            _scale(module, G.source(nodes[layer], 1), factor)
        folded = set(source.users) == set(readers) and _fold(module, source, factor)
        name = each.source if folded else G.name_of(_divide(module, source, readers, factor))
        names[each.source] = name
    return names


def _factors(module: fx.GraphModule, channels: torch.Tensor, layers: list[fx.Node]) -> torch.Tensor:
    """Return factors, float32 [in], geometric mean 1, from the ranges of channels and weights."""
    weights = [G.tensor(module, G.source(n, 1)).detach().double().cpu() for n in layers]
    columns = torch.cat([w.abs().flatten(0, -2) for w in weights]).amax(0)
    channels = channels.clamp(min=SMALLEST * float(channels.max()))
    columns = columns.clamp(min=SMALLEST * float(columns.max()) or 1.0)
    logs = STRENGTH * channels.log() - (1 - STRENGTH) * columns.log()
    return (logs - logs.mean()).exp().float()


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


# --- targets: tensors quantized for linear layers only, and inputs of recurrent layers ------------


@dataclass(frozen=True)
class SmoothingTarget:
    """A tensor to smooth, by the names of nodes.

    Attributes:
        source: computes the tensor.
        readers: read it, and lead to the layers.
        layers: linear or recurrent layers that read it, directly or reshaped.
    """

    source: str
    readers: tuple[str, ...]
    layers: tuple[str, ...]


def smoothing_targets(graph: fx.Graph, plan: QuantPlan) -> list[SmoothingTarget]:
    """Return the float tensors that are quantized only for linear layers with their own weights, or
    read by recurrent ones.

    The tensor may be reshaped on the way if its last dimension stays. Tensors that exist only as
    codes are excluded: there is no float value to multiply.
    """
    nodes = {G.name_of(n): n for n in graph.nodes}
    edges = [(p, nodes[e.user]) for p in plan for e in p.edges if e.user in nodes]
    # the input of a recurrent layer is float, or rounded in the range of a batch
    schemes = {n: Dynamic for p, n in edges if p.kind is Kind.WEIGHT and _is_layer(n, RECURRENT)}
    schemes |= {
        n: type(p.spec)
        for p, n in edges
        if p.kind is Kind.ACTIVATION and _is_layer(n, ("linear", *RECURRENT))
    }
    reads = G.attribute_reads(graph)
    groups: dict[fx.Node, list[list[fx.Node]]] = {}
    for layer in schemes:
        path = _path(layer)
        groups.setdefault(path[0], []).append(path[1:])
    targets = []
    for source, paths in groups.items():
        on_path = {n for path in paths for n in path}
        layers = {path[-1] for path in paths}
        exclusive = all(reads[str(G.source(n, 1).target)] == 1 for n in layers)
        inner = all(set(n.users) <= on_path for n in on_path - layers)
        dynamic = {schemes[n] is Dynamic for n in layers}
        if not (exclusive and inner and len(dynamic) == 1) or _codes_only(plan, source):
            continue
        if dynamic == {True} or _only_for(plan, source, on_path):
            readers = tuple(G.name_of(n) for n in source.users if n in on_path)
            ends = tuple(G.name_of(path[-1]) for path in paths)
            targets.append(SmoothingTarget(G.name_of(source), readers, ends))
    return targets


def _codes_only(plan: QuantPlan, node: fx.Node) -> bool:
    decision = plan.decision(G.name_of(node))
    return decision is not None and decision.codes_only


def _path(layer: fx.Node) -> list[fx.Node]:
    """Return the nodes from the input of a layer, before any reshape, to the layer."""
    path, node = [layer], G.source(layer)
    while node.target in RESHAPES:
        source = G.source(node)
        if not G.same_sizes(G.shape(source)[-1:], G.shape(node)[-1:]):
            break
        path, node = [node, *path], source
    return [node, *path]


def _is_layer(node: fx.Node, keys: Collection[str]) -> bool:
    row = row_of(node) if node.op == "call_function" else None
    if row is None or row.key not in keys:
        return False
    weight = node.args[1]
    return isinstance(weight, fx.Node) and weight.op == "get_attr"


def _only_for(plan: QuantPlan, source: fx.Node, readers: set[fx.Node]) -> bool:
    """Return whether the tensor has its own range, and its codes have no other readers."""
    name, allowed = G.name_of(source), {G.name_of(n) for n in readers}
    if name not in plan or not isinstance(plan.point(name).spec, Observed):
        return False
    sharing = {p.name for p in plan if isinstance(p.spec, SharedWith) and p.spec.point == name}
    return sharing <= allowed and {e.user for e in plan.point(name).edges} <= allowed
