"""Conversion of one block: its weights, its training and its check, as for a small model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, TypeVar, overload

import torch

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.exclusive_layers import with_constants
from qtool.algorithms.layer_solution import SolvedLayers
from qtool.algorithms.part_samples import PartBatch, PartSamples, choose_samples
from qtool.algorithms.pipeline import Scope, Step, run_steps
from qtool.algorithms.registry import select_block_steps
from qtool.backends.onnx.storage import save
from qtool.blockwise.activation_store import ActivationStore
from qtool.blockwise.block_pass import BlockStores, run_block
from qtool.blockwise.block_plan import BlockwiseRun
from qtool.blockwise.changed_values import save_changed_values
from qtool.blockwise.checkpoint import BlockChecks, BlockRecord
from qtool.blockwise.stored_data import StoredBatch
from qtool.calibration.solve_parameters import Parameters
from qtool.conversion.quantized import Quantized
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.data.sample_roles import Role
from qtool.core.errors import VerificationError
from qtool.core.graph import FloatGraph
from qtool.core.graph.cut import Block, weight_bytes
from qtool.core.graph.float_graph import MIN_SAMPLES
from qtool.core.types import Change
from qtool.frontends.captured_model import Captured
from qtool.metrics.output_errors import OutputErrors
from qtool.verification.estimate import ESTIMATE, estimate_outputs

SAMPLES = 4
"""Samples that each block is verified with."""

OUTPUT_BYTES = 1 << 30
"""Outputs of both networks that are stored to measure a block that only joins them."""

TRAINING_BYTES = 1 << 26
"""Smallest size of the values that a training step stores for its gradients; of large blocks it is
that of their weights."""


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


def _required(run: BlockwiseRun, index: int, batch: StoredBatch) -> list[str]:
    """Return the tensors of a batch that a block and later ones read.

    A block that only joins outputs, which are large and feed no other block, needs some measured
    batches alone.
    """
    readers = (b for b in run.blocks[index:] if batch in _batches_of(b, run.batches))
    return run.required(index, readers)


def convert_block(run: BlockwiseRun, index: int) -> None:
    """Convert one block and add it to the checkpoint."""
    block, checkpoint = run.blocks[index], run.checkpoint
    own = _batches_of(block, run.batches)
    values = checkpoint.activations(index)
    names = [block.tensor_name(n) for n in block.inputs]
    exact, coded = ([side[n] for n in names] for side in values.load(own[0].number))
    start = _start(run, index, exact)
    steps, _ = select_block_steps(run.plan.recipe)
    solved = run_steps((step for step in steps if step.scope is Scope.WEIGHTS), start)
    solvers = {s.name: s.solve_layer for s in steps if s.solve_layer is not None}
    needed = partial(_required, run, index + 1)
    stores = BlockStores(values, checkpoint.scratch, checkpoint.activations(index + 1), needed)
    layers, errors = run_block(solved, solvers, stores, own)
    state = _with_solved_weights(solved, layers, steps)
    if training := [step for step in steps if step.scope is Scope.PART]:
        size = max(sum(map(weight_bytes, block.calls)), TRAINING_BYTES)
        read = partial(_stored_samples, values, names, own)
        samples = PartSamples(size, run.shared_points(index), read)
        # judged by the errors of the block's results, on held-out samples
        state = replace(run_steps(training, replace(state, samples=samples)), samples=None)
        if any(change.step == step.name for change in state.changes for step in training):
            # for its new results, which the next blocks read
            _, errors = run_block(solved, {}, stores, own, state)
    measured = sum(batch.size for batch in own if batch.measured)
    digest = save_changed_values(checkpoint.block(index), start, state)
    checkpoint.add(_check_block(run, state, layers, errors, coded, measured, digest))


def _start(run: BlockwiseRun, index: int, example: Sequence[Any]) -> ConversionState:
    """Return the state of a block before its steps. example: its inputs."""
    graph, plan = run.blocks[index].graph(run.read, example), run.plans[index]
    sample = _sample(graph, example)
    graph = replace(graph, example=(sample.args, dict(sample.kwargs)))
    known = run.parameters.params
    params = {p.name: known[p.name] for p in plan if p.name in known}  # dynamic points have none
    return ConversionState(Captured(graph, ""), graph, plan, parameters=Parameters(params))


def _check_block(
    run: BlockwiseRun,
    converted: ConversionState,
    layers: SolvedLayers,
    errors: Mapping[str, OutputErrors],
    coded: Sequence[torch.Tensor],
    measured: int,
    digest: str,
) -> BlockRecord:
    """Verify the next block as a file of its own, and return its record.

    Args:
        layers, errors: results of `run_block`.
        coded: its inputs in the quantized network.
        measured: number of samples that its errors are measured on.
        digest: digest of its values.
    """
    checkpoint, index = run.checkpoint, len(run.checkpoint.finished)
    name, quantized = run.blocks[index].name, Quantized(converted, _sample(converted.graph, coded))
    save(quantized.to_onnx(), checkpoint.checked)
    checked = quantized.check_file(checkpoint.checked)
    parity, exactness = checked.parity, checked.exactness
    checks = BlockChecks(quantized.info.nodes, parity, exactness, checked.coverage)
    if not (parity.passed and (exactness is None or exactness.passed)):
        why = f"{exactness}; {parity}".replace("\n", "; ")
        raise VerificationError(f"block {index} ({name}) does not compute what was planned ({why})")
    estimates = {
        name: estimate.outputs[0][1:]
        for name, own in errors.items()
        if (estimate := estimate_outputs(own, ESTIMATE)).outputs
    }
    notes = (*quantized.notes, *layers.notes)
    changes = tuple((c.step, c.count, c.reason) for c in converted.changes)
    arrays = {c.step: tuple(sorted(c.arrays)) for c in converted.changes if c.arrays}
    return BlockRecord(name, digest, estimates, measured, changes, notes, checks, arrays)


def _with_solved_weights(
    state: ConversionState, layers: SolvedLayers, steps: Sequence[Step]
) -> ConversionState:
    """Return the state with the solved weights and biases of the block, and a change of each step;
    that of the last one has the biases that are float."""
    if not layers.constants:
        return state
    solved = with_constants(state, layers.constants)
    solving = [step for step in steps if step.solve_layer is not None]
    for step in solving:
        count = sum(step.name in names for names in layers.steps.values())
        arrays = layers.float_constants if step is solving[-1] else {}
        if count or arrays:
            solved = solved.with_change(Change(step.name, count, step.reason, arrays))
    return solved


def _sample(graph: G.FloatGraph, tensors: Sequence[torch.Tensor]) -> Batch:
    """Return the first samples of a batch."""
    return graph.head(graph.call_of(tensors), SAMPLES)


# The samples of a block for steps that train on it: inputs in both networks, on disk.
#
# The quantized block gets its inputs in the quantized network; its goal are the results of the
# float block for the inputs in the float network (BRECQ, Li et al. 2021; EfficientQAT, Chen et al.
# 2024). So a block also makes up for errors of those before it.


_T = TypeVar("_T")


def _stored_samples(
    values: ActivationStore,
    names: Sequence[str],
    stored: Sequence[StoredBatch],
    graph: FloatGraph,
    size: int,
    limit: int | None,
    holdout: bool | None,
) -> Sequence[Batch]:
    """Return batches of a block, of all ranks; each is mapped when it is used.

    Args:
        values: inputs of the block, of all batches.
        names: names of its inputs, in order.
        stored: its batches.
        graph, size, limit, holdout: see `PartSamples`; a batch that cannot be split is taken whole.
    """
    splits = graph.can_split_batches
    pieces = list(_pieces(stored, graph, size if splits else None, limit, holdout))

    def load(index: int) -> Batch:
        batch, chosen = pieces[index]
        exact, coded = (graph.call_of([s[n] for n in names]) for s in values.load(batch.number))
        both = PartBatch(coded.args, coded.kwargs, exact=exact)
        return choose_samples(graph, both, chosen) if splits else both

    return LazySequence(load, range(len(pieces)))


def _pieces(
    stored: Sequence[StoredBatch],
    graph: FloatGraph,
    size: int | None,
    limit: int | None,
    holdout: bool | None,
) -> Iterator[tuple[StoredBatch, slice]]:
    """Yield batches and the samples of each piece."""
    fewest = graph.batch_size_range()[0]
    fewest = fewest if fewest > MIN_SAMPLES else 1
    left = sum(batch.size for batch in stored) if limit is None else limit
    for batch in stored:
        if batch.role is Role.ESTIMATE or (holdout is not None and batch.fitted is holdout):
            continue
        step = max(size or batch.size, fewest)
        for start in range(0, batch.size, step):
            count = min(step, batch.size - start)
            count = min(count, left) if size is not None else count
            if left <= 0 or count < fewest:
                break
            yield batch, slice(start, start + count)
            left -= count


class LazySequence(Sequence[_T]):
    """Items by number.

    Args:
        item: number -> item; called at each access.
        numbers: numbers of the items, in order.
    """

    def __init__(self, item: Callable[[int], _T], numbers: Sequence[int]) -> None:
        self._item, self._numbers = item, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> _T: ...

    @overload
    def __getitem__(self, index: slice) -> LazySequence[_T]: ...

    def __getitem__(self, index: int | slice) -> _T | LazySequence[_T]:
        if isinstance(index, slice):
            return LazySequence(self._item, self._numbers[index])
        return self._item(self._numbers[index])
