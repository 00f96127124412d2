"""The step `cross-layer-equalization`: equal channel ranges, with factors moved into the weights.

Cross-layer equalization (Nagel et al. 2019) balances the weights of pairs of layers. Here streams
of channels go through the whole graph (`channel_streams`), and their factors minimise the predicted
output noise of activations and weights together (`factors`). They are kept if the predicted gain is
large enough and the error on held-out samples does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.cross_layer_equalization.channel_streams import find_streams
from qtool.algorithms.cross_layer_equalization.factors import factor_limits, solve_factors
from qtool.algorithms.cross_layer_equalization.gradient_sensitivity import measure_sensitivity
from qtool.algorithms.cross_layer_equalization.noise_model import noise_model, predict_noise
from qtool.algorithms.cross_layer_equalization.stream_walk import Streams
from qtool.algorithms.registry import CROSS_LAYER_EQUALIZATION
from qtool.calibration.collect import modules_to_observe, observer_hooks
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import VerificationError
from qtool.core.graph.file_parts import nodes_before_parts
from qtool.core.ops import row_of
from qtool.core.types import Change, ObserverSpec
from qtool.observers import MinMax
from qtool.planning.fake_quantize import insert_points
from qtool.planning.plan import Kind, Probe, QuantPlan

Factors = Mapping[str, torch.Tensor]
"""Tensor name -> divisors of its channels, float32 [channels]."""

REASON = "channel ranges are equalized, with factors moved into the weights around them"

FEWEST = 32  # samples; with fewer the step is skipped
BACKWARD_SAMPLES = 64
BATCH = 16  # samples of the backward run at once
OBSERVED = 64  # samples at once for the new ranges: an observer costs the same for any number
ELEMENTS = 1 << 25  # limit for all values of a batch, which the backward run holds
WORTH = 0.86  # largest predicted share of the noise; above it, `gptq` alone does better


def _probe_name(source: str) -> str:
    return f"{source}.highest"


def _extremes_name(tensor: str) -> str:
    return f"{tensor}.extremes"


def probes(graph: fx.Graph, plan: QuantPlan) -> Sequence[Probe]:
    """Return probes for the channel extremes of tensors that can be scaled, from which ranges
    after scaling follow, and for those in front of clamps with an upper bound."""
    if not plan.observed():
        return ()
    spec, probed = ObserverSpec("minmax"), {}
    if graph.owning_module is not None:
        streams = find_streams(graph.owning_module)
        for name in dict.fromkeys(p.tensor for p in plan.observed()):
            if _is_scalable(streams, name):
                axis = streams.tensors[name].axis
                probed[_extremes_name(name)] = Probe(_extremes_name(name), name, spec, axis)
    for node in G.calls(graph):
        row, source = row_of(node), node.args[0] if node.args else None
        if row is None or row.key != "clip" or not isinstance(source, fx.Node):
            continue
        if row.bounds(node)[1] is not None and G.is_float(source) and G.rank(source) > 1:
            name = G.name_of(source)
            axis = 1 if G.rank(source) > 2 else -1
            if isinstance(G.shape(source)[axis], int):  # no channels, but samples or positions
                probed[_probe_name(name)] = Probe(_probe_name(name), name, spec, axis)
    return tuple(probed.values())


def propose(state: ConversionState) -> ConversionState:
    """Return the state with channel ranges that are equal across layers."""
    streams = find_streams(state.graph.module)
    if state.calibration is None or not _can_help(state.plan, streams):
        return state
    if len(state.calibration.kept_samples) < FEWEST:
        return state.without_samples(CROSS_LAYER_EQUALIZATION.name)
    size = _batch_size(state.graph.module)
    batches = partial(state.batches, channels_last=True)
    factors = _find_factors(state, streams, batches(size, BACKWARD_SAMPLES))
    if not factors:
        return state
    change = Change(CROSS_LAYER_EQUALIZATION.name, len(factors), REASON, factors)
    scaled = _apply(state, change, batches(size, size, holdout=True))
    observed = [
        b
        for held in (False, True)
        for b in batches(OBSERVED, CROSS_LAYER_EQUALIZATION.samples, held)
    ]
    return _observe_again(scaled, factors, observed)


def replay(state: ConversionState, change: Change) -> ConversionState:
    """Return the state with the factors of a change."""
    return _apply(state, change, ())


def _can_help(plan: QuantPlan, streams: Streams) -> bool:
    """Return whether any tensor with its own range has free channels."""
    return any(_is_scalable(streams, p.tensor) for p in plan.observed())


def _is_scalable(streams: Streams, tensor: str) -> bool:
    channels = streams.tensors.get(tensor)
    return channels is not None and bool(channels.streams.any())


def _batch_size(module: fx.GraphModule) -> int:
    """Return the batch size for which all values fit into memory."""
    sizes = [G.shape(n) for n in module.graph.nodes if n.op != "get_attr" and G.is_float(n)]
    each = sum(math.prod(G.hint(s) for s in size[1:]) for size in sizes)
    return max(1, min(BATCH, ELEMENTS // max(each, 1)))


def _find_factors(state: ConversionState, streams: Streams, batches: Iterable[Batch]) -> Factors:
    """Return the factors of tensors next to constants that absorb them; empty if not worth it."""
    assert state.calibration is not None
    module, plan = state.graph.module, state.plan
    layers = {n for p in plan if p.kind is Kind.WEIGHT for n in {e.user for e in p.edges}}
    names = {p.tensor for p in plan if p.kind is Kind.ACTIVATION} | layers
    unmeasured = {G.name_of(n) for n in nodes_before_parts(module.graph)}
    axes = {n: streams.tensors[n].axis for n in names - unmeasured if n in streams.tensors}
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    rows = {s.constant: _rows(nodes[s.constant]) for s in streams.slots if s.power == 1}
    weights = {n: axis for n, axis in rows.items() if axis is not None and n not in unmeasured}
    device = state.graph.device
    inputs = [state.graph.tensors_of(b.to(device)) for b in batches]
    try:
        sensitivity = measure_sensitivity(G.on_device(module, device), inputs, axes, weights)
    except RuntimeError:  # an operator without a derivative
        return {}
    statistics = state.calibration.statistics
    for name, tensor in sensitivity.tensors.items():
        every = statistics.get(_extremes_name(name))
        if isinstance(every, MinMax) and not every.empty:  # a rare sample may set the range
            tensor.low, tensor.high = (end.double().cpu() for end in every.extent())
    extremes = {b.source: statistics.get(_probe_name(b.source)) for b in streams.bounds}
    highest = {
        n: s.extent()[1] for n, s in extremes.items() if isinstance(s, MinMax) and not s.empty
    }
    noise = noise_model(module, plan, streams, sensitivity)
    logs = solve_factors(noise, factor_limits(streams, highest, unmeasured))
    before, after = (float(predict_noise(noise, each)) for each in (torch.zeros_like(logs), logs))
    if after > WORTH * before:
        return {}
    factors = {s.tensor: torch.exp2(logs[streams.tensors[s.tensor].streams]) for s in streams.slots}
    return {n: f.float() for n, f in factors.items() if bool((f != 1).any())}


def _rows(weight: fx.Node) -> int | None:
    """Return the dimension of a weight's rows; None where a row reads a single channel.

    A factor does not change how such a row is rounded.
    """
    (layer,) = weight.users
    row, shape = row_of(layer), G.shape(weight)
    if row is None or row.weight is None or len(shape) < 2:
        return None
    return row.channel_axis if int(shape[1 - row.channel_axis]) > 1 else None


def _apply(state: ConversionState, change: Change, samples: Sequence[Batch]) -> ConversionState:
    """Return the state with channels divided by the factors of a change."""
    streams = find_streams(state.graph.module)
    slots = [s for s in streams.slots if s.tensor in change.arrays]
    tensors = {s.tensor for s in slots}
    matches = all(
        change.arrays[n].shape == streams.tensors[n].streams.shape for n in tensors
    ) and tensors == set(change.arrays)
    if not matches:
        raise VerificationError(
            "the file was made from another model: this one lacks the tensors that were equalized"
        )

    def edit(module: fx.GraphModule) -> int:
        nodes = {G.name_of(n): n for n in module.graph.nodes}
        for slot in slots:
            constant = nodes[slot.constant]
            old = G.tensor(module, constant).detach()
            factor = change.arrays[slot.tensor].double()[slot.channel] ** slot.power
            new = old.double() * factor.to(old.device)
            G.set_tensor(module, constant, new.to(old.dtype))
        return change.count

    return state.apply_edit(change, edit, samples)


def _observe_again(
    state: ConversionState, factors: Factors, batches: Iterable[Batch]
) -> ConversionState:
    """Return the state with new statistics of the changed tensors.

    The stored samples give the shape of a histogram, with all elements, since the samples are few
    and percentiles need many. All data gives its ends: the scaled extremes of the channels.
    """
    assert state.calibration is not None
    calibration, plan = state.calibration, state.plan
    changed = _changed_channels(state.graph.module, factors)
    probes = [
        Probe(name, tensor, calibration.specs[name], statistic.axis)
        for name, statistic in calibration.statistics.items()
        if (tensor := name.rpartition(".")[0]) in changed and name not in plan
    ]
    prepared = insert_points(state.graph.module, plan)
    others = {p.name for p in plan.observed() if p.tensor not in changed}
    observed = {
        name: replace(watch, observer=calibration.specs[name], by_sample=False)
        for name, watch in modules_to_observe(prepared, plan, probes).items()
        if name not in others and name in calibration.specs
    }
    with observer_hooks(observed) as statistics, torch.inference_mode():
        for batch in batches:
            prepared(*batch.args, **batch.kwargs)
    for point in plan.observed():
        extremes = calibration.statistics.get(_extremes_name(point.tensor))
        if point.name in statistics and isinstance(extremes, MinMax) and not extremes.empty:
            ends = torch.stack(extremes.extent()) / changed[point.tensor]
            statistics[point.name].update(ends[[0, 1], [ends[0].argmin(), ends[1].argmax()]])
    merged = {**calibration.statistics, **statistics}
    held = {n: s for n, s in calibration.estimate_statistics.items() if n not in statistics}
    changed_calibration = replace(calibration, statistics=merged, estimate_statistics=held)
    return replace(state, calibration=changed_calibration)


def _changed_channels(module: fx.GraphModule, factors: Factors) -> Factors:
    """Return the factors of all tensors with a scaled channel: of those next to constants, and of
    those that the same streams go through."""
    streams = find_streams(module)
    by_stream = torch.ones(streams.count)
    for name, factor in factors.items():
        by_stream[streams.tensors[name].streams] = factor
    each = {n: by_stream[c.streams] for n, c in streams.tensors.items()}
    return {name: factor for name, factor in each.items() if bool((factor != 1).any())}
