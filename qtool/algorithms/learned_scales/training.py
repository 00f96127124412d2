"""The step `learned-scales` (LSQ): scales and low-bit weights trained for the network's outputs.

The quantized network is trained end to end, without labels, to reproduce the float outputs: scales
of activations (learned step size quantization, LSQ; Esser et al. 2020), biases, and weights of
fewer than 8 bits, in codes, with a straight-through gradient. AdaRound and BRECQ (Nagel et al.
2020; Li et al. 2021) match the float result of each layer or block instead; only the outputs
matter, and errors of layers may cancel. With 8-bit weights nearly all noise comes from activations,
and weights trained on some hundred samples would overfit their rounding: they are frozen. Scales
are too few to overfit. They stop changing before the end, since the mean rounding errors depend on
them and biases have to compensate those of the last scales.

The result is kept if it reduces the output noise on held-out samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

import torch
from safetensors.torch import load, save

from qtool.algorithms.acceptance import (
    float_outputs,
    ranks_for,
    relative_error,
)
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.learned_scales.trainable_graph import TrainableGraph, make_trainable
from qtool.algorithms.pipeline import Step
from qtool.algorithms.skip_reasons import NO_SAMPLES
from qtool.core.data import Batch
from qtool.core.graph.executor import Executor
from qtool.core.progress import track
from qtool.core.types import Change

NAME = "learned-scales"
REASON = "scales of activations, biases and weights of few bits are learned for the outputs"
NO_GRADIENT = "skipped, since this network has no gradient ({})"
NOT_FINITE = "stopped after {} of {} steps, since the loss was not finite"

SAMPLES = 1024
BATCH = 32
MAX_STEPS = 300
MAX_MACS = 4e12
"""MACs of all forward runs, about; large networks get fewer steps."""
MIN_STEPS = 20
RATES = {"scales": 0.01, "weights": 0.005, "biases": 0.005}
"""Initial learning rates of Adam, for logarithms and codes."""
UNTIL = {"scales": 0.6, "weights": 1.0, "biases": 1.0}
"""Share of the steps after which a rate is zero; biases continue, for the final scales."""
HOLDOUT_SAMPLES = 256
SHARES = (1.0, 0.5, 0.25)
"""Shares of the trained change of scales to try; with few samples a smaller one is better."""


def _propose(state: ConversionState) -> ConversionState | list[ConversionState]:
    groups = state.batches(SAMPLES)
    if not groups or not state.batches(BATCH, HOLDOUT_SAMPLES, holdout=True):
        return state.with_notes(f"{NAME}: {NO_SAMPLES}")
    graph = make_trainable(state)
    if not graph.parameters:
        return state
    failure, notes = _train_on_one_rank(state, graph, groups)
    if failure:
        return state.with_notes(f"{NAME}: {failure}")
    change = Change(NAME, len(graph.parameters), REASON)
    return [graph.apply_to(state, share).with_notes(*notes).with_change(change) for share in SHARES]


def _train_on_one_rank(
    state: ConversionState, graph: TrainableGraph, groups: Sequence[Batch]
) -> tuple[str, list[str]]:
    """Train in place, on rank 0 for all; return why it failed, or "", and notes."""
    ranks, failure, notes = ranks_for(state, NAME), "", list[str]()
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
    exact, count = state.captured.graph.module, _step_count(state)
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
        batch = next(batches)
        with torch.no_grad():
            targets = float_outputs(exact, batch)
        loss = relative_error(targets, float_outputs(graph.module, batch))
        optimizer.zero_grad()
        loss.backward()
        if not _has_finite_gradients(graph):
            return (f"{NAME}: {NOT_FINITE.format(i, count)}",)
        optimizer.step()
    return ()


def _has_finite_gradients(graph: TrainableGraph) -> bool:
    gradients = [p.grad for p in graph.parameters if p.grad is not None]
    return all(bool(g.isfinite().all()) for g in gradients)


def _step_count(state: ConversionState) -> int:
    """Return the number of steps, within MAX_MACS."""
    cost = BATCH * max(1, Executor(state.graph).cost())
    return max(MIN_STEPS, min(MAX_STEPS, int(MAX_MACS / cost)))


def _sample_batches(state: ConversionState, groups: Sequence[Batch]) -> Iterator[Batch]:
    """Draw batches by a fixed seed, each of samples of one shape."""
    generator = torch.Generator().manual_seed(0)
    sizes, splits = torch.tensor([float(g.size) for g in groups]), state.graph.can_split_batches
    while True:
        group = groups[int(torch.multinomial(sizes, 1, generator=generator))]
        tensors = state.graph.tensors_of(group)
        if not splits or len({t.shape[:1] for t in tensors}) > 1:
            yield group
            continue
        chosen = torch.randint(group.size, (min(BATCH, group.size),), generator=generator)
        yield state.graph.call_of([t[chosen] for t in tensors])


LEARNED_SCALES = Step(NAME, _propose, accuracy="best", samples=SAMPLES, judges=HOLDOUT_SAMPLES)
