"""The step `learned-scales` (LSQ): scales and low-bit weights trained for the network's outputs.

The quantized network is trained end to end, without labels, to reproduce the float outputs: scales
of activations (learned step size quantization, LSQ; Esser et al. 2020), biases, and weights of
fewer than 8 bits, in codes, with a straight-through gradient. AdaRound and BRECQ (Nagel et al.
2020; Li et al. 2021) match the float result of each layer or block instead; only the outputs
matter, and errors of layers may cancel. In a model larger than memory the results of each block
are matched, from its inputs in the quantized network. With 8-bit weights nearly all noise comes
from activations, and weights trained on some hundred samples would overfit their rounding: they are
frozen. Scales are too few to overfit. They stop changing before the end, since the mean rounding
errors depend on them and biases have to compensate those of the last scales.

The result is kept if it reduces the output noise on held-out samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

import torch
from safetensors.torch import load, save

from qtool.algorithms.acceptance import ranks_for, relative_error, target_outputs
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.learned_scales.trainable_graph import TrainableGraph, make_trainable
from qtool.algorithms.next_token_loss import float_outputs
from qtool.algorithms.part_samples import choose_samples, join_batches
from qtool.algorithms.registry import LEARNED_SCALES
from qtool.core.data import Batch
from qtool.core.graph.executor import Executor
from qtool.core.progress import track
from qtool.core.types import Change

REASON = "scales of activations, biases and weights of few bits are learned for the outputs"
NO_GRADIENT = "skipped, since this network has no gradient ({})"
AS_A_WHOLE = (
    f"{LEARNED_SCALES.name}: the network is trained as a whole; the parts of the recipe are those "
    "of a conversion block by block"
)
NOT_FINITE = "stopped after {} of {} steps, since the loss was not finite"

BATCH = 32
MAX_STEPS = 300
MAX_MACS = 4e12
"""MACs of all forward runs, about; large networks get fewer steps."""
MIN_STEPS = 20
VALUE_BYTES = 8
"""Of each value of the float network, about: itself and its rounded one, both in float32."""
RATES = {"scales": 0.01, "weights": 0.005, "biases": 0.005}
"""Initial learning rates of Adam, for logarithms and codes."""
UNTIL = {"scales": 0.6, "weights": 1.0, "biases": 1.0}
"""Share of the steps after which a rate is zero; biases continue, for the final scales."""
SHARES = (1.0, 0.5, 0.25)
"""Shares of the trained change of scales to try; with few samples a smaller one is better."""


def propose(state: ConversionState) -> ConversionState | list[ConversionState]:
    """Return states with all, half and a quarter of what training changed in the scales."""
    groups = state.batches(LEARNED_SCALES.samples)
    if not groups or not state.batches(BATCH, LEARNED_SCALES.judges, holdout=True):
        return state.without_samples(LEARNED_SCALES.name)
    graph = make_trainable(state)
    if not graph.parameters:
        return state
    failure, notes = _train_on_one_rank(state, graph, groups)
    if state.samples is None and state.plan.recipe.parts:
        notes.append(AS_A_WHOLE)
    if failure:
        return state.with_notes(f"{LEARNED_SCALES.name}: {failure}")
    change = Change(LEARNED_SCALES.name, len(graph.parameters), REASON)
    shares = SHARES if graph.has_shares else SHARES[:1]
    return [graph.apply_to(state, share).with_notes(*notes).with_change(change) for share in shares]


def _train_on_one_rank(
    state: ConversionState, graph: TrainableGraph, groups: Sequence[Batch]
) -> tuple[str, list[str]]:
    """Train in place, on rank 0 for all; return why it failed, or "", and notes."""
    ranks, failure, notes = ranks_for(state, LEARNED_SCALES.name), "", list[str]()
    if not ranks.rank:
        try:
            notes += _train(state, graph, groups)
        except RuntimeError as error:  # of autograd, which has no other
            failure = NO_GRADIENT.format(str(error).partition("\n")[0])
    if ranks.is_distributed:
        own = {str(i): p.detach().cpu().contiguous() for i, p in enumerate(graph.parameters)}
        values = load(ranks.broadcast(None if ranks.rank else save(own)))
        with torch.no_grad():
            for i, parameter in enumerate(graph.parameters):
                parameter.copy_(values[str(i)])
        failure, notes = json.loads(ranks.all_gather(json.dumps([failure, notes]))[0])
    return failure, notes


def _train(
    state: ConversionState, graph: TrainableGraph, groups: Sequence[Batch]
) -> tuple[str, ...]:
    """Train in place; return notes.

    Raises:
        RuntimeError: an operator of the network has no gradient.
    """
    float_network, count = state.captured.graph.module, _step_count(state)
    optimizer = torch.optim.Adam(
        [
            {"params": list(p.values()), "rate": RATES[kind], "until": UNTIL[kind] * count}
            for kind, p in graph.kinds.items()
            if p
        ],
        betas=(0.9, 0.99),
    )
    batches = _sample_batches(state, groups)
    for i in track("learning", range(count), count):
        for group in optimizer.param_groups:
            part = min(i / group["until"], 1.0)
            group["lr"] = group["rate"] * (1 + math.cos(math.pi * part)) / 2
        optimizer.zero_grad()
        parts = next(batches)
        for part in parts:
            with torch.no_grad():
                targets = target_outputs(float_network, part)
            loss = relative_error(targets, float_outputs(graph.module, part)) / len(parts)
            loss.backward()
        if not _has_finite_gradients(graph):
            return (f"{LEARNED_SCALES.name}: {NOT_FINITE.format(i, count)}",)
        optimizer.step()
    optimizer.zero_grad()
    return ()


def _has_finite_gradients(graph: TrainableGraph) -> bool:
    gradients = [p.grad for p in graph.parameters if p.grad is not None]
    return all(bool(g.isfinite().all()) for g in gradients)


def _step_count(state: ConversionState) -> int:
    """Return the number of steps, within MAX_MACS."""
    cost = BATCH * max(1, Executor(state.graph).cost())
    return max(MIN_STEPS, min(MAX_STEPS, int(MAX_MACS / cost)))


def _sample_batches(state: ConversionState, groups: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Draw batches by a fixed seed, each of samples of one shape, in parts that are run one by one.

    In memory a batch is one part; the values of a block's part fit into `training_bytes`.
    """
    generator, graph = torch.Generator().manual_seed(0), state.graph
    splits, most = graph.can_split_batches, _samples_at_once(state)
    classes = _classes(state, groups, splits)
    sizes = torch.tensor([float(sum(size for _, size in each)) for each in classes])
    while True:
        members = classes[int(torch.multinomial(sizes, 1, generator=generator))]
        if not splits:
            yield [groups[index] for index, _ in members]
            continue
        total = sum(size for _, size in members)
        chosen = torch.randint(total, (min(BATCH, total),), generator=generator)
        yield [_chosen(state, groups, members, part) for part in chosen.split(most)]


def _classes(
    state: ConversionState, groups: Sequence[Batch], splits: bool
) -> list[list[tuple[int, int]]]:
    """Return number and size of the groups whose samples fit into one batch, in order."""
    classes = dict[object, list[tuple[int, int]]]()
    for index, group in enumerate(groups):
        rows = [tuple(t.shape[1:]) for t in state.graph.tensors_of(group)]
        key = tuple(rows) if splits and state.graph.all_inputs_have_samples else index
        classes.setdefault(key, []).append((index, state.graph.size_of(group)))
    return list(classes.values())


def _chosen(
    state: ConversionState,
    groups: Sequence[Batch],
    members: Sequence[tuple[int, int]],
    chosen: torch.Tensor,
) -> Batch:
    """Return the samples of these numbers, which count through the groups of a class."""
    first, parts = 0, []
    for index, size in members:
        own = chosen[(chosen >= first) & (chosen < first + size)] - first
        if len(own):
            parts.append(choose_samples(state.graph, groups[index], own))
        first += size
    return parts[0] if len(parts) == 1 else join_batches(state.graph, parts)


def _samples_at_once(state: ConversionState) -> int:
    """Return how many samples of a batch are run at once: of a block as many as have values of
    `training_bytes`, at least one."""
    if state.samples is None:
        return BATCH
    elements = sum(call.elements for call in Executor(state.graph).calls.values())
    return max(1, min(BATCH, state.samples.training_bytes // (VALUE_BYTES * max(1, elements))))
