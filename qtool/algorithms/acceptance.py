"""Acceptance of a step: the output noise of the quantized network, on held-out samples."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import fx, nn

from qtool import distributed
from qtool.algorithms.comparable_pairs import MIN_POWER, Pair, comparable_pairs
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.next_token_loss import (
    NextTokens,
    conclusive_change,
    find_next_tokens,
    float_outputs,
)
from qtool.algorithms.part_samples import PartBatch, float_side
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.data.calibration_samples import content_hash
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.graph.fingerprint import fingerprint, state_hash
from qtool.distributed import Ranks, interleave
from qtool.planning.fake_quantize import insert_points, quant_points
from qtool.planning.input_rounding import insert_input_rounding
from qtool.planning.result_parts import refine_results
from qtool.simulation.output_evidence import evidence_of_float_outputs

HOLDOUT_SAMPLES = 64
HOLDOUT_BATCH = 16  # of one candidate, more samples are run while the result is not conclusive
STANDARD_ERRORS = 3  # a mean further from zero than this is conclusive
FEWEST_RATIOS = 8  # with fewer, their spread is not known
NOISE_FLOOR = 1e-3  # of the mean noise; bounds the ratio of a sample that has hardly any


Runs = dict[str, Executor]
"""Hash of a network -> what runs it."""


@dataclass(frozen=True, eq=False)
class Errors:
    """Power and error of the outputs for one batch.

    Elements that are not finite in the float network are left out.

    Attributes:
        signal: power of the float outputs, float64 [outputs, samples]; [outputs, 1] where an output
            does not have one row per sample.
        noise: power of the differences from them, likewise.
        loss: loss of the next tokens of a causal language model, float64 [samples]; empty of
            others.
    """

    signal: torch.Tensor
    noise: torch.Tensor
    loss: torch.Tensor


def target_outputs(module: nn.Module, batch: Batch) -> list[torch.Tensor]:
    """Return the outputs of the float network that those of the quantized one are to equal."""
    return float_outputs(module, float_side(batch))


def relative_error(
    expected: Iterable[torch.Tensor], actual: Iterable[torch.Tensor]
) -> torch.Tensor:
    """Return the relative squared error, summed over outputs, differentiable: a scalar."""
    pairs = list(zip(expected, actual, strict=True))
    return torch.stack(
        [
            (float_output - output).square().sum()
            / float_output.square().sum().clamp(min=MIN_POWER)
            for float_output, output in pairs
        ]
    ).sum()


def quantized_module(state: ConversionState) -> fx.GraphModule:
    """Return the quantized network with the current parameters."""
    assert state.parameters is not None
    module = insert_points(state.graph.module, state.plan)
    for name, point in quant_points(module).items():
        point.set_params(state.parameters.params[name])
    return module


def runtime_module(state: ConversionState) -> fx.GraphModule:
    """Return the quantized network as its runtime computes it: with what kernels round inside, and
    with the finer codes of some results."""
    module = quantized_module(state)
    insert_input_rounding(module, state.plan)
    refine_results(module, state.plan)
    return module


def output_noise(
    state: ConversionState,
    modules: Sequence[fx.GraphModule],
    batches: Sequence[Batch],
    runs: Runs | None = None,
) -> list[torch.Tensor]:
    """Return the output noise of each quantized network, relative to the float outputs' power.

    Args:
        runs: see `measure_errors`.

    Returns:
        What each sample adds, per module: float64 [samples]; [batches] where an output does not
        have one row per sample.
    """
    errors = _errors_of_all_ranks(state, modules, batches, runs)
    power = torch.stack([e.signal.sum(1) for e in errors[0]]).sum(0).clamp(min=MIN_POWER)
    return [torch.cat([(e.noise / power[:, None]).sum(0) for e in each]) for each in errors]


def token_losses(
    state: ConversionState,
    modules: Sequence[fx.GraphModule],
    batches: Sequence[Batch],
    runs: Runs | None = None,
) -> list[torch.Tensor]:
    """Return the loss of the next tokens of each quantized network, float64 [samples]; empty where
    the model is no causal language model. The arguments are those of `output_noise`."""
    tokens = find_next_tokens(state.captured.graph, batches[0]) if state.samples is None else None
    if tokens is None:  # the errors of all batches may not be needed
        return [torch.zeros(0, dtype=torch.float64) for _ in modules]
    errors = _errors_of_all_ranks(state, modules, batches, runs, tokens)
    return [torch.cat([e.loss for e in each]) for each in errors]


def _errors_of_all_ranks(
    state: ConversionState,
    modules: Sequence[fx.GraphModule],
    batches: Sequence[Batch],
    runs: Runs | None,
    tokens: NextTokens | None = None,
) -> list[list[Errors]]:
    ranks = ranks_for(state, f"judge by {len(batches)} batches", modules)
    cache = state.calibration.kept_samples.cache if state.calibration is not None else {}
    graphs = [replace(state.graph, module=module) for module in modules]
    own = batches[ranks.rank :: ranks.size]
    expected = state.captured.graph.module
    measured = measure_errors(expected, graphs, own, cache, runs, tokens)
    return [_gather_errors(ranks, each) for each in measured]


def ranks_for(state: ConversionState, task: str, modules: Sequence[fx.GraphModule] = ()) -> Ranks:
    """Return the ranks that share a task.

    They share it if all are at the same task with bit-identical networks; otherwise each works
    alone. A rank that skipped a step would block the others in the middle of the next one.
    """
    return distributed.step_ranks(lambda: _task_fingerprint(state, task, modules))


def _task_fingerprint(state: ConversionState, task: str, modules: Sequence[fx.GraphModule]) -> str:
    hashes = [task, fingerprint(state.graph.module), *map(state_hash, modules)]
    digest = hashlib.sha256("\n".join(hashes).encode())
    if state.parameters is not None:
        for name, params in sorted(state.parameters.params.items()):
            digest.update(name.encode())
            for tensor in (params.scale, params.zero_point):
                digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _gather_errors(ranks: Ranks, own: list[Errors]) -> list[Errors]:
    """Return the errors of all ranks' batches, in order; JSON keeps every bit of a float."""
    if not ranks.is_distributed:
        return own
    rows = [[e.signal.shape[1], e.loss.tolist(), e.signal.tolist(), e.noise.tolist()] for e in own]
    gathered = interleave([json.loads(text) for text in ranks.all_gather(json.dumps(rows))])
    return [
        Errors(_matrix(signal, count), _matrix(noise, count), _vector(loss))
        for count, loss, signal, noise in gathered
    ]


def _vector(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _matrix(rows: list[list[float]], columns: int) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), columns)


def best_candidate(
    before: ConversionState, candidates: Sequence[ConversionState], samples: int
) -> ConversionState | None:
    """Return the most accurate candidate on held-out samples; None if each is worse than `before`.

    The first one if there are no such samples. The loss of the next tokens of a causal language
    model decides where it is conclusive. Else the mean over samples of the logarithm of the error
    ratio decides; a few samples with large errors would dominate a ratio of sums. Of one candidate
    a quarter or half of the samples are used where they are conclusive.

    Args:
        before: the state before the step.
        candidates: states after it.
        samples: the largest number of held-out samples.
    """
    batches = before.batches(HOLDOUT_BATCH, samples, holdout=True, channels_last=True)
    if not batches:
        return candidates[0]
    modules = [runtime_module(each.solved()) for each in (before, *candidates)]
    runs: Runs = {}
    losses = token_losses(before, modules, batches, runs)
    if len(losses[0]) and (judged := _best_by_tokens(losses)) is not None:
        best, change = judged
        return candidates[best] if change < 0 else None
    ratios = [torch.zeros(0, dtype=torch.float64) for _ in candidates]
    for part in _parts(batches) if len(candidates) == 1 else [batches]:
        noise, *others = output_noise(before, modules, part, runs)
        new = [error_ratios(noise, each) for each in others]
        ratios = [torch.cat(pair) for pair in zip(ratios, new, strict=True)]
        if _is_conclusive(ratios[0]):
            break
    means = [float(each.mean()) for each in ratios]
    best = min(range(len(means)), key=means.__getitem__)
    return candidates[best] if means[best] <= 0 else None


def _best_by_tokens(losses: Sequence[torch.Tensor]) -> tuple[int, float] | None:
    """Return the candidate with the lowest loss and its change; None where no change is conclusive.

    Args:
        losses: losses of texts, before the step and of each candidate.
    """
    changes = [conclusive_change(losses[0], each) for each in losses[1:]]
    known = [(change, i) for i, change in enumerate(changes) if change is not None]
    if not known or (min(known)[0] > 0 and len(known) < len(changes)):
        return None
    change, best = min(known)
    return best, change


def _parts(batches: Sequence[Batch]) -> list[Sequence[Batch]]:
    """Return the first quarter of the batches, the second one, and the rest; none is empty."""
    ends = [-(-len(batches) * share // 4) for share in (0, 1, 2, 4)]
    return [batches[start:end] for start, end in pairwise(ends) if end > start]


def _is_conclusive(ratios: torch.Tensor) -> bool:
    if len(ratios) < FEWEST_RATIOS:
        return False
    error = ratios.std(correction=0) / len(ratios) ** 0.5
    return bool(abs(ratios.mean()) >= STANDARD_ERRORS * error)


def error_ratios(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the error ratio of each sample, after over before: [samples]."""
    floor = (NOISE_FLOOR * (before + after).mean()).clamp(min=MIN_POWER)
    return ((after + floor) / (before + floor)).log()


def measure_errors(
    expected: fx.GraphModule,
    graphs: Sequence[FloatGraph],
    batches: Sequence[Batch],
    cache: dict[tuple[str, str], Errors],
    runs: Runs | None = None,
    tokens: NextTokens | None = None,
) -> list[list[Errors]]:
    """Return the errors of quantized networks, by network and batch.

    Args:
        expected: the float network.
        graphs: networks with quantization points.
        cache: (hash of a network, key of a batch) -> errors; read and extended.
        runs: executors of the networks, kept for several calls; extended.
        tokens: next tokens of a causal language model, whose loss is measured, too.
    """
    contents = [_content_key(batch) for batch in batches]
    hashes = [state_hash(graph.module) for graph in graphs]
    runs, device = {} if runs is None else runs, graphs[0].device
    expected = G.on_device(expected, device)
    evidence = evidence_of_float_outputs(graphs[0])
    with torch.inference_mode():
        for batch, content in zip(batches, contents, strict=True):
            new = {m: g for m, g in zip(hashes, graphs, strict=True) if (m, content) not in cache}
            moved = batch.to(device)
            targets = target_outputs(expected, moved) if new else []
            for network_hash, graph in new.items():
                if network_hash not in runs:
                    runs[network_hash] = Executor(graph, device=device)
                run = runs[network_hash]
                values = [t for t in run.output_values(moved, run.points) if t.is_floating_point()]
                pairs = comparable_pairs(targets, values, evidence)
                errors = _errors(pairs, graph.size_of(batch))
                if tokens is not None:
                    errors = replace(errors, loss=tokens.losses(graph, moved, values))
                cache[network_hash, content] = errors
    return [[cache[network_hash, content] for content in contents] for network_hash in hashes]


def _content_key(batch: Batch) -> str:
    """Return a key of a batch: its content and strides, as other strides change last bits."""
    sides = [batch, batch.exact] if isinstance(batch, PartBatch) else [batch]
    tensors = [t.detach().cpu() for side in sides for _, t in side.tensors()]
    return f"{content_hash(tensors)} {[t.stride() for t in tensors]}"


def _errors(pairs: Sequence[Pair], samples: int) -> Errors:
    per_sample = bool(pairs) and all(t.dim() and len(t) == samples for t, _ in pairs)
    count = samples if per_sample else 1
    signal, noise = [torch.zeros(0, count)], [torch.zeros(0, count)]
    for float_output, output in pairs:
        finite, real = float_output.isfinite(), float_output.double()
        error = (
            real - output if float_output.shape == output.shape else torch.full_like(real, math.nan)
        )
        for each, values in ((signal, real), (noise, error)):
            power = values.square().masked_fill(~finite, 0)
            each.append(power.reshape(1, count, -1).sum(2).cpu())
    loss = torch.zeros(0, dtype=torch.float64)
    return Errors(torch.cat(signal).double(), torch.cat(noise).double(), loss)
