"""The step `output-equalization`: results of linear layers with one range for all channels.

y = s (W / s) x: the layer's result has channels of one range, which one scale for the tensor fits,
and a float multiplication behind it restores them. Weights with a scale per output channel lose
nothing: scale and codes are divided alike.

It is for runtimes whose kernels round their results to codes (LiteRT's FULLY_CONNECTED), where
floats read them. The feed-forward layers of a transformer write few channels that are a hundred
times as wide as the others to the residual stream, which then share two codes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.registry import OUTPUT_EQUALIZATION
from qtool.algorithms.smooth_quant import (
    SMALLEST,
    Factors,
    channel_probe,
    unequal_channels,
    with_scaled_ranges,
)
from qtool.core import graph as G
from qtool.core.errors import VerificationError
from qtool.core.types import Change, Observed
from qtool.planning.plan import Execution, Kind, Probe, QuantPlan

REASON = "channels of a linear layer's result get one range, and a float multiplication restores it"

aten = torch.ops.aten


def probes(graph: fx.Graph, plan: QuantPlan) -> Sequence[Probe]:
    """Return probes for the channel extremes of the results that can be equalized."""
    return [channel_probe(layer) for layer in equalizable_layers(graph, plan)]


def propose(state: ConversionState) -> ConversionState:
    """Return the state with one range for all channels of layers' results."""
    factors = _find_factors(state)
    while factors:
        after = replay(state, _change(factors))
        floats = {n for n in factors if _is_float(after.plan, _product_name(n))}
        if floats == factors.keys():
            return after
        factors = {n: f for n, f in factors.items() if n in floats}
    return state


def _change(factors: Factors) -> Change:
    return Change(OUTPUT_EQUALIZATION.name, len(factors), REASON, factors)


def replay(state: ConversionState, change: Change) -> ConversionState:
    """Return the state with results scaled by the factors of a change."""
    factors = {n: torch.as_tensor(f) for n, f in change.arrays.items()}
    if not factors.keys() <= set(equalizable_layers(state.graph.graph, state.plan)):
        raise VerificationError(
            "the equalization of results that the file records does not fit this model: it has "
            "other layers"
        )

    def edit(module: fx.GraphModule) -> int:
        nodes = {G.name_of(n): n for n in module.graph.nodes}
        for name, factor in factors.items():
            _equalize(module, nodes[name], factor)
        return len(factors)

    after = state.apply_edit(change, edit)
    if state.calibration is None:
        return after
    names = {name: name for name in factors}
    return replace(after, calibration=with_scaled_ranges(state.calibration, factors, names))


def _product_name(layer: str) -> str:
    return f"{layer}.restored"


def _find_factors(state: ConversionState) -> Factors:
    """Return the factors of the results whose channel ranges differ enough, geometric mean 1."""
    assert state.calibration is not None
    factors = {}
    for layer in equalizable_layers(state.graph.graph, state.plan):
        size = unequal_channels(state.calibration, layer)
        if size is not None:
            logs = size.double().clamp(min=SMALLEST * float(size.max())).log()
            factors[layer] = (logs - logs.mean()).exp().float()
    return factors


def _equalize(module: fx.GraphModule, layer: fx.Node, factor: torch.Tensor) -> None:
    """Divide the channels of a layer's result, in place, and multiply them behind it."""
    readers, following = list(layer.users), layer.next
    for constant in layer.args[1:3]:
        if isinstance(constant, fx.Node):
            old = G.tensor(module, constant).detach()
            by = factor.to(old.device, torch.float64).reshape(-1, *[1] * (old.dim() - 1))
            G.set_tensor(module, constant, (old / by).to(old.dtype))
    name = _product_name(G.name_of(layer))
    scales = G.add_tensor(module, following, factor.to(G.value(layer).dtype), f"{name}.factors")
    product = G.add_call(following, aten.mul.Tensor, (layer, scales), name, layer)
    for reader in readers:
        reader.replace_input_with(layer, product)


# --- layers: linear ones that round their results to codes, which floats read ---------------------


def equalizable_layers(graph: fx.Graph, plan: QuantPlan) -> list[str]:
    """Return the linear layers whose result has a range of its own and exists as codes only, which
    nothing but operators in float reads, perhaps reshaped with its last dimension as it is."""
    nodes = {G.name_of(n): n for n in graph.nodes}
    reads = G.attribute_reads(graph)
    per_channel = {
        e.user
        for p in plan
        if p.kind is Kind.WEIGHT and isinstance(p.spec, Observed) and p.spec.axis == 0
        for e in p.edges
    }
    layers = []
    for decision in plan.nodes:
        name, node = decision.node, nodes.get(decision.node)
        if decision.op != "linear" or decision.execution is not Execution.INTEGER or node is None:
            continue
        own = decision.output == name and isinstance(plan.point(name).spec, Observed)
        if own and decision.codes_only and name in per_channel and _owns_constants(node, reads):
            ends = list(_readers(plan, node))
            if ends and all(_is_float(plan, G.name_of(n)) for n in ends):
                layers.append(name)
    return layers


def _owns_constants(layer: fx.Node, reads: Mapping[str, int]) -> bool:
    constants: Collection[object] = [a for a in layer.args[1:3] if a is not None]
    return all(
        isinstance(c, fx.Node) and c.op == "get_attr" and reads[str(c.target)] == 1
        for c in constants
    )


def _readers(plan: QuantPlan, node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes that read a result, behind reshapes."""
    for user in node.users:
        decision = plan.decision(G.name_of(user))
        moves = decision is not None and decision.execution is Execution.PASS
        if moves and G.same_sizes(G.shape(user)[-1:], G.shape(node)[-1:]):
            yield from _readers(plan, user)
        else:
            yield user


def _is_float(plan: QuantPlan, name: str) -> bool:
    decision = plan.decision(name)
    return decision is not None and decision.execution is Execution.FLOAT
