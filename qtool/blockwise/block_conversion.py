"""Conversion of one block: its plan, calibration, weights and file, as for a small model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import fx

from qtool import observers
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.exclusive_layers import with_constants
from qtool.algorithms.pipeline import Scope, Step, run_steps
from qtool.algorithms.registry import select_block_steps
from qtool.backends.onnx.storage import append_weights
from qtool.blockwise.block_pass import run_block
from qtool.blockwise.block_run import BlockOutcome
from qtool.blockwise.block_samples import StoredSamples
from qtool.blockwise.block_training import rerun_block, train_block
from qtool.blockwise.cache_scales import set_cache_scales
from qtool.blockwise.checkpoint import BlockRecord, Checkpoint, block_digest
from qtool.blockwise.model_source import ModelSource
from qtool.blockwise.stored_data import StoredBatch
from qtool.calibration.calibration import Calibration
from qtool.calibration.collect import collect_statistics
from qtool.conversion.quantized import Quantized
from qtool.core import graph as G
from qtool.core.atomic import write_atomic
from qtool.core.data import Batch
from qtool.core.data.sample_roles import Role
from qtool.core.errors import VerificationError
from qtool.core.graph.cut import Block
from qtool.core.types import Change
from qtool.frontends.captured_model import Captured
from qtool.planning.plan import QuantPlan
from qtool.planning.recipe import Recipe
from qtool.verification.output_errors import ESTIMATE, estimate_outputs

SAMPLES = 4
"""Samples that each block is verified with."""

OUTPUT_BYTES = 1 << 30
"""Outputs of both networks that are stored to measure a block that only joins them."""

TRAINING_BYTES = 1 << 26
"""Smallest size of the values that a training step stores for its gradients; of large blocks it is
that of their weights."""


@dataclass(frozen=True)
class BlockwiseRun:
    """A block-wise conversion.

    Attributes:
        whole: the graph of the model in the forms of its target; its weights are deferred.
        source: reads its weights.
        layers: name of a node -> name of the layer that it is a part of.
        blocks: the blocks, in order.
        checkpoint: finished blocks, and activations.
        target, observer, recipe: options of the conversion.
        block: bytes of float32 weights of a block.
        memory: bytes that the self-test of the file may take to make.
    """

    whole: G.FloatGraph
    source: ModelSource
    layers: Mapping[str, str]
    blocks: Sequence[Block]
    checkpoint: Checkpoint
    target: str
    observer: str
    recipe: Recipe
    block: int
    memory: int

    def read(self, node: fx.Node) -> torch.Tensor:
        """Read a stored tensor of the graph."""
        return G.read_values(G.tensor(self.whole.module, node))


def required_inputs(
    run: BlockwiseRun, index: int, batches: Sequence[StoredBatch], batch: StoredBatch
) -> list[str]:
    """Return the tensors of a batch that a block and later ones read.

    A block that only joins outputs, which are large and feed no other block, needs some measured
    batches alone.
    """
    before = {b.tensor_name(n) for b in run.blocks[:index] for n in b.outputs}
    before |= {i.name for i in run.whole.inputs}
    later = [b for b in run.blocks[index:] if batch in _batches_of(b, batches)]
    read = [b.tensor_name(n) for b in later for n in b.inputs]
    return [name for name in dict.fromkeys(read) if name in before]


def _read_later(run: BlockwiseRun, index: int) -> frozenset[str]:
    """Return the names of the tensors that blocks behind this one read."""
    return frozenset(b.tensor_name(n) for b in run.blocks[index + 1 :] for n in b.inputs)


def _batches_of(block: Block, batches: Sequence[StoredBatch]) -> Sequence[StoredBatch]:
    """Return the batches that run through a block."""
    if not block.only_outputs:
        return batches
    shapes = [[G.hint(size) for size in G.shape(n)] for n in block.outputs]
    sample = 2 * sum(4 * prod(shape[1:]) for shape in shapes)
    measured = [batch for batch in batches if batch.measured]
    ends = accumulate(batch.size * sample for batch in measured)
    fitting = sum(end <= OUTPUT_BYTES for end in ends)
    return measured[: max(1, fitting)]


def convert_block(run: BlockwiseRun, index: int, batches: Sequence[StoredBatch]) -> None:
    """Convert one block and add it to the checkpoint."""
    block, checkpoint = run.blocks[index], run.checkpoint
    own = _batches_of(block, batches)
    values = checkpoint.activations(index)
    names = [block.tensor_name(n) for n in block.inputs]
    exact, coded = ([side[n] for n in names] for side in values.load(own[0].number))
    of_ranges = [batch for batch in own if batch.role is not Role.ESTIMATE] or own
    own_batches = partial(_float_inputs, run, index, of_ranges)
    captured, plan = _plan_block(run, block, exact, own_batches())
    calibration = _calibrate_block(run, captured, plan, own_batches())
    steps, _ = select_block_steps(run.recipe)
    solved = run_steps(
        (step for step in steps if step.scope is Scope.WEIGHTS),
        ConversionState.start(captured, plan, calibration),
    )
    solvers = {s.name: s.solve_layer for s in steps if s.solve_layer is not None}
    after = checkpoint.activations(index + 1), partial(required_inputs, run, index + 1, batches)
    outcome = run_block(solved, solvers, values, checkpoint.scratch, after, own)
    state = _with_solved_weights(solved, outcome, steps)
    if training := [step for step in steps if step.scope is Scope.PART]:
        shared = frozenset(block.tensor_name(n) for n in block.outputs) & _read_later(run, index)
        size = max(run.block, TRAINING_BYTES)
        samples = StoredSamples(values, names, own, size, shared)
        state = train_block(state, training, samples)
        if any(change.step == step.name for change in state.changes for step in training):
            rerun_block(solved, state, values, after, own, outcome)
    record = None
    if not checkpoint.ranks.rank:
        measured = sum(batch.size for batch in own if batch.measured)
        record = _write_block(run, state, outcome, coded, measured)
    checkpoint.add(record)


def _write_block(
    run: BlockwiseRun,
    converted: ConversionState,
    outcome: BlockOutcome,
    coded: Sequence[torch.Tensor],
    measured: int,
) -> BlockRecord:
    """Verify the next block and write it.

    Args:
        coded: its inputs in the quantized network.
        measured: number of samples that its errors are measured on.
    """
    checkpoint, index = run.checkpoint, len(run.checkpoint.finished)
    name, quantized = run.blocks[index].name, Quantized(converted, _sample(converted.graph, coded))
    model, end = append_weights(quantized.to_onnx(), checkpoint.data, checkpoint.end)
    message = model.SerializeToString()
    write_atomic(checkpoint.model(index), message)
    checked = quantized.check_file(checkpoint.model(index))
    parity, exactness = checked.parity, checked.exactness
    if not (parity.passed and (exactness is None or exactness.passed)):
        why = f"{exactness}; {parity}".replace("\n", "; ")
        raise VerificationError(f"block {index} ({name}) does not compute what was planned ({why})")
    digest = block_digest(message, checkpoint.data, checkpoint.end, end)
    estimates = {
        name: estimate.outputs[0][1:]
        for name, errors in outcome.errors.items()
        if (estimate := estimate_outputs(errors, ESTIMATE)).outputs
    }
    notes = (*quantized.notes, *outcome.notes)
    changes = tuple((c.step, c.count, c.reason) for c in converted.changes)
    results = quantized.info.nodes, parity, exactness, checked.coverage
    return BlockRecord(name, end, digest, estimates, measured, changes, notes, *results)


def _plan_block(
    run: BlockwiseRun,
    block: Block,
    example: Sequence[Any],
    batches: Iterable[Sequence[torch.Tensor]],
) -> tuple[Captured, QuantPlan]:
    """Return the captured block with its weights, and its plan.

    Args:
        example: inputs of the block.
        batches: those of the batches of this rank, in the float network.
    """
    graph = block.graph(run.read, example)
    set_cache_scales(graph, batches, run.checkpoint.ranks)
    sample = _sample(graph, example)
    graph = replace(graph, example=(sample.args, dict(sample.kwargs)))
    captured = Captured(graph, "")
    return captured, captured.plan(run.target, run.observer, run.recipe, layers=run.layers)


def _calibrate_block(
    run: BlockwiseRun,
    captured: Captured,
    plan: QuantPlan,
    batches: Iterable[Sequence[torch.Tensor]],
) -> Calibration:
    """Calibrate the block on the float network; empty if its plan has no fixed range.

    Args:
        batches: inputs of the block in the float network, this rank's.
    """
    graph, _ = captured.for_target(run.target)
    if not any(plan.observed()):
        spec = observers.parse(run.observer)
        return Calibration("", run.target, spec, run.recipe, graph.inputs, 0, {}, {})
    data = (graph.call_of(tensors) for tensors in batches)
    return collect_statistics(graph, plan, (), data, "", check_shards=False)


def _float_inputs(
    run: BlockwiseRun, index: int, batches: Sequence[StoredBatch]
) -> Iterator[list[torch.Tensor]]:
    """Yield the inputs of a block in the float network, for the batches of this rank."""
    block, ranks = run.blocks[index], run.checkpoint.ranks
    for batch in batches[ranks.rank :: ranks.size]:
        exact, _ = run.checkpoint.activations(index).load(batch.number)
        yield [exact[block.tensor_name(n)] for n in block.inputs]


def _with_solved_weights(
    state: ConversionState, outcome: BlockOutcome, steps: Sequence[Step]
) -> ConversionState:
    """Return the state with the solved weights of the block, and a change of each step."""
    if not outcome.weights:
        return state
    solved = with_constants(state, outcome.weights)
    for step in steps:
        count = sum(step.name in names for names in outcome.solvers.values())
        if count:
            solved = solved.with_change(Change(step.name, count, step.reason))
    return solved


def _sample(graph: G.FloatGraph, tensors: Sequence[torch.Tensor]) -> Batch:
    """Return the first samples of a batch."""
    return graph.head(graph.call_of(tensors), SAMPLES)
