"""The step `learn`: scales and low-bit weights learned by gradient, for the outputs of the network.

The quantized network is trained to give what the float one gives, end to end and without labels:
the scales of its activations (learned step sizes; Esser et al. 2020), biases, and weights of fewer
than 8 bits, in codes, by a gradient that passes straight through their rounding. AdaRound and BRECQ
(Nagel et al. 2020; Li et al. 2021) hold each layer or block to its own float result instead; the
outputs are what counts, and errors of layers may undo each other. Where weights have 8 bits nearly
all noise is that of activations, and weights that learn from some hundred samples learn how just
these happen to be rounded: so they are left alone. Few numbers cannot. Scales come to rest before
the end: the means of rounding errors are others for each, and biases have to mend them for the
last.

What was learned is taken where it is nearer to the float network on samples kept aside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

import torch
from safetensors.torch import load, save

from qtool.algorithms.acceptance import (
    float_outputs,
    output_noise,
    quantized_module,
    ranks_for,
    relative_error,
)
from qtool.algorithms.learned_scales.trainable_graph import TrainableGraph, make_trainable
from qtool.algorithms.pipeline import ConversionState, Step
from qtool.algorithms.skip_on_failure import LESS_ACCURATE, NO_SAMPLES
from qtool.core.data import Batch
from qtool.core.graph.executor import Executor
from qtool.core.progress import track
from qtool.core.types import Change

NAME = "learned-scales"
REASON = "scales of activations, biases and weights of few bits are learned for the outputs"
NO_GRADIENT = "skipped, since this network has no gradient ({})"
NOT_FINITE = "stopped after {} of {} steps, since the loss was not finite"
INTERRUPTED = "interrupted after {} of {} steps; the values learned until then are kept"

SAMPLES = 1024
BATCH = 32
MAX_STEPS = 300
MAX_MACS = 4e12
"""In MACs of forward runs, about: large networks get fewer rounds."""
MIN_STEPS = 20
RATES = {"scales": 0.01, "weights": 0.005, "biases": 0.005}
"""Of Adam, at the beginning; in logarithms and in codes."""
UNTIL = {"scales": 0.6, "weights": 1.0, "biases": 1.0}
"""When these rates have come down to zero; biases go on to mend the means of other scales."""
HOLDOUT_SAMPLES = 256
SHARES = (1.0, 0.5, 0.25)
"""How much of what scales learned is tried: where samples are few, less of it is better."""


def _run(state: ConversionState) -> ConversionState:
    groups, judges = state.batches(SAMPLES), _holdout_batches(state)
    if not groups or not judges:
        return state.with_notes(f"{NAME}: {NO_SAMPLES}")
    found = make_trainable(state)
    if not found.parameters:
        return state
    refused, notes = _train_on_one_rank(state, found, groups)
    if refused:
        return state.with_notes(f"{NAME}: {refused}")
    tried = [found.apply_to(state, share) for share in SHARES]
    before, *after = output_noise(
        state, [quantized_module(each) for each in (state, *tried)], judges
    )
    best = min(range(len(tried)), key=after.__getitem__)
    if not after[best] < before:
        return state.with_notes(*notes, f"{NAME}: {LESS_ACCURATE}")
    return tried[best].with_notes(*notes).with_change(Change(NAME, len(found.parameters), REASON))


def _train_on_one_rank(
    state: ConversionState, found: TrainableGraph, groups: Sequence[Batch]
) -> tuple[str, list[str]]:
    """Trains in place, on one rank for all; why it cannot, and what it notes."""
    ranks, refused, notes = ranks_for(state, NAME), "", list[str]()
    if not ranks.rank:
        try:
            notes += _train(state, found, groups)
        except RuntimeError as error:  # of autograd, which has no other
            refused = NO_GRADIENT.format(str(error).partition("\n")[0])
    if ranks.is_distributed:
        own = {str(i): p.detach().cpu().contiguous() for i, p in enumerate(found.parameters)}
        values = load(ranks.broadcast(None if ranks.rank else save(own)))
        with torch.no_grad():
            for i, parameter in enumerate(found.parameters):
                parameter.copy_(values[str(i)])
        refused, notes = json.loads(ranks.all_gather(json.dumps([refused, notes]))[0])
    return refused, notes


def _holdout_batches(state: ConversionState) -> list[Batch]:
    return state.batches(BATCH, HOLDOUT_SAMPLES, holdout=True)


def _train(
    state: ConversionState, found: TrainableGraph, groups: Sequence[Batch]
) -> tuple[str, ...]:
    """Trains in place; what it notes. Ends where a person interrupts it, with the last values.

    Raises:
        RuntimeError: an operator of the network has no gradient.
    """
    exact, count = state.captured.graph.module, _step_count(state)
    optimizer = torch.optim.Adam(
        [
            {"params": list(p.values()), "rate": RATES[kind], "until": UNTIL[kind] * count}
            for kind, p in found.kinds.items()
            if p
        ],
        betas=(0.9, 0.99),
    )
    done, drawn = 0, _sample_batches(state, groups)
    try:
        for i in track("learning", range(count), count):
            for group in optimizer.param_groups:
                part = min(i / group["until"], 1.0)
                group["lr"] = group["rate"] * (1 + math.cos(math.pi * part)) / 2
            batch = next(drawn)
            with torch.no_grad():
                wanted = float_outputs(exact, batch)
            loss = relative_error(wanted, float_outputs(found.module, batch))
            optimizer.zero_grad()
            loss.backward()
            if not _finite(found):
                return (f"{NAME}: {NOT_FINITE.format(done, count)}",)
            optimizer.step()
            done += 1
    except KeyboardInterrupt as ended:
        if type(ended) is not KeyboardInterrupt or not done:  # another signal means what it says
            raise
        return (f"{NAME}: {INTERRUPTED.format(done, count)}",)
    return ()


def _finite(found: TrainableGraph) -> bool:
    gradients = [p.grad for p in found.parameters if p.grad is not None]
    return all(bool(g.isfinite().all()) for g in gradients)


def _step_count(state: ConversionState) -> int:
    """As many as cost no more than WORK."""
    cost = BATCH * max(1, Executor(state.graph).cost())
    return max(MIN_STEPS, min(MAX_STEPS, int(MAX_MACS / cost)))


def _sample_batches(state: ConversionState, groups: Sequence[Batch]) -> Iterator[Batch]:
    """Batches of samples drawn by a fixed seed, each of samples of one shape."""
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


LEARNED_SCALES = Step(NAME, _run, accuracy="best", samples=SAMPLES)
