"""Runs all batches through one block, in the float and the quantized network, level by level.

A layer that reads the result of another one is a level above it (`BlockRun`). For each level, all
batches run up to the inputs of its layers; then the weights of these are rounded, and the batches
continue from there. Live activations are stored on disk in between, so that one batch at a time is
in memory.

Each rank runs its share of the batches and stores their activations. Then each accumulates the
moments of its layer shards over the batches of all ranks, in the order of a single process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from qtool.algorithms.acceptance import runtime_module
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.exclusive_layers import LayerCall, exclusive_layers
from qtool.algorithms.layer_solution import SolvedLayers
from qtool.algorithms.weight_rounding.layer_solver import LayerSolver
from qtool.blockwise.activation_store import ActivationStore
from qtool.blockwise.layer_moments import (
    Shard,
    add_batch,
    make_shards,
    solve_by_moments,
)
from qtool.blockwise.stored_data import StoredBatch
from qtool.core import graph as G
from qtool.core.graph.executor import Executor
from qtool.core.graph.levels import Levels, with_known
from qtool.core.memory import trim_memory
from qtool.distributed import Ranks, current
from qtool.metrics.output_errors import OutputErrors
from qtool.planning.plan import QuantPlan

_SIZE = "size "
After = tuple[ActivationStore, Callable[[StoredBatch], Iterable[str]]]
Rows = list[tuple[int, list[float], list[float]]]
"""Number of a measured batch; noise and power of a result, by sample."""


def run_block(
    state: ConversionState,
    solvers: Mapping[str, LayerSolver],
    values: ActivationStore,
    scratch: ActivationStore,
    after: After,
    batches: Sequence[StoredBatch],
    trained: ConversionState | None = None,
) -> tuple[SolvedLayers, dict[str, OutputErrors]]:
    """Run batches through a block, and solve its layers on the way.

    Args:
        state: state of the block, with solved parameters.
        solvers: solvers of layers, by the names of their steps; none keeps the nearest codes.
        values: inputs of the block and of later ones.
        scratch: folder for activations inside the block.
        after: where to store the inputs of the next blocks, and their names for each batch.
        batches: the batches to run; those held out are measured, and never learned from.
        trained: a later state of the block, whose quantized network runs; None: that of `state`.

    Returns:
        The solved layers, and name of a result -> its errors on the measured batches.

    Raises:
        FileError: the disk is full.
    """
    at = start_run(state, solvers, trained)
    top = at.levels.top
    for level in range(top + 1):
        stops = set(at.levels.stops_of(level + 1))
        calls = [call for i, call in at.calls.items() if i in stops]
        shards = make_shards(at.ranks, calls, sum(b.fitted for b in batches))
        _advance(at, level, values, scratch, after if level == top else None, batches, shards)
        for call in calls:
            _solve(at, call, [shard for shard in shards if shard.call is call])
        del shards
        trim_memory()
    return at.solved, _join_errors(at.ranks, at.errors)


def _advance(
    at: BlockRun,
    level: int,
    values: ActivationStore,
    scratch: ActivationStore,
    after: After | None,
    batches: Sequence[StoredBatch],
    shards: Sequence[Shard],
) -> None:
    """Run all batches through one level, and accumulate the moments of the next level's shards.

    after: where results go after the last level.
    """
    ranks, alive = at.ranks, at.levels.alive(level, at.outputs.values())
    targets = set(at.levels.stops_of(level + 1))  # computed in the float network alone
    counts = [batch.size * batch.fitted for batch in batches]
    fitted = list(zip(batches, [0, *accumulate(counts)], strict=False))  # number of first sample
    fitted = [(batch, first) for batch, first in fitted if batch.fitted]
    firsts = {batch.number: first for batch, first in fitted}
    own = batches[ranks.rank :: ranks.size]
    for batch in own:
        index = batch.number
        ranks.check()
        exact, coded = _load(at, level, index, values, scratch)
        at.levels.advance(level, exact, coded, alive)
        if batch.fitted and not ranks.is_distributed:
            add_batch(shards, exact, coded, firsts[index])
        if after is None:
            scratch.save(index, _to_named(exact, alive | targets), _to_named(coded, alive))
        else:
            results = {name: (exact[i], coded[i]) for name, i in at.outputs.items()}
            _store_results(batch, values, after, results, at.errors)
            scratch.drop(index)
    if ranks.is_distributed and shards:
        ranks.all_gather("")  # a barrier: all batches are stored
        for batch, first in fitted:
            ranks.check()
            add_batch(shards, *_load(at, level + 1, batch.number, values, scratch), first)


def _load(
    at: BlockRun, level: int, index: int, values: ActivationStore, scratch: ActivationStore
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Load the values of a batch before a level, in both networks."""
    run = at.executor
    if level == 0:
        numbers = dict(zip(at.inputs, run.inputs, strict=True))
        known = [{numbers[n]: v for n, v in k.items() if n in numbers} for k in values.load(index)]
    else:
        known = [_from_named(side) for side in scratch.load(index)]
        targets = set(at.levels.stops_of(level))
        known[1] = {i: v for i, v in known[1].items() if i not in targets}
    exact, coded = at.levels.start(frozenset()), at.levels.start(run.points, at.changed)
    return with_known(exact, known[0]), with_known(coded, known[1])


def _to_named(values: Sequence[Any], numbers: Iterable[int]) -> dict[str, torch.Tensor]:
    """Return values by number under the names that a file has; sizes are marked."""
    chosen = {i: values[i] for i in numbers}
    sizes = {i: v for i, v in chosen.items() if not isinstance(v, torch.Tensor)}
    marked = {f"{_SIZE}{i}": torch.tensor(v) for i, v in sizes.items()}
    return marked | {str(i): v for i, v in chosen.items() if i not in sizes}


def _from_named(named: Mapping[str, torch.Tensor]) -> dict[int, Any]:
    """Return the values of `_to_named`."""
    return {
        int(name.removeprefix(_SIZE)): value.item() if name.startswith(_SIZE) else value
        for name, value in named.items()
    }


def _store_results(
    batch: StoredBatch,
    values: ActivationStore,
    after: After,
    results: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
    errors: dict[str, Rows],
) -> None:
    """Store the inputs of the next blocks, and measure the errors of the results.

    Args:
        batch: which has run.
        values: inputs of this block and of later ones.
        after: see `run_block`.
        results: name -> result in the float and the quantized network.
        errors: extended.
    """
    folder, needed = after
    both = values.load(batch.number)
    for name, (exact, coded) in results.items():
        both[0][name], both[1][name] = exact, coded
        if batch.measured and exact.is_floating_point():
            own = _errors(name, exact, coded)
            row = (batch.number, own.noise[0].tolist(), own.signal[0].tolist())
            errors.setdefault(name, []).append(row)
    names = tuple(needed(batch))
    kept = [{name: side[name] for name in names} for side in both]
    folder.save(batch.number, *kept)


def _errors(name: str, exact: torch.Tensor, coded: torch.Tensor) -> OutputErrors:
    """Return the errors of a result, of one element of its first dimension after the other: in
    float64 all of them may not fit into memory."""

    def array(row: torch.Tensor) -> np.ndarray[Any, Any]:
        return row[None].double().numpy(force=True)

    pairs = zip(torch.atleast_1d(exact), torch.atleast_1d(coded), strict=True)
    return OutputErrors.joined(
        [OutputErrors.of([name], [array(a)], [array(b)], 1) for a, b in pairs]
    )


def _join_errors(ranks: Ranks, errors: Mapping[str, Rows]) -> dict[str, OutputErrors]:
    """Return the errors of the results over the batches of all ranks, in their order."""
    gathered = [json.loads(text) for text in ranks.all_gather(json.dumps(errors))]
    joined = dict[str, OutputErrors]()
    for name in dict.fromkeys(name for own in gathered for name in own):
        rows = sorted(row for own in gathered for row in own.get(name, []))
        noise = np.array([[each for _, part, _ in rows for each in part]])
        power = np.array([[each for _, _, part in rows for each in part]])
        joined[name] = OutputErrors((name,), power, noise, noise.shape[1])
    return joined


def _solve(at: BlockRun, call: LayerCall, shards: Sequence[Shard]) -> None:
    """Round the weights of a layer, if that is better than their nearest codes, and correct its
    bias."""
    solution = solve_by_moments(at.ranks, shards, at.plan, at.solvers)
    for place, value in at.solved.add(call.layer, solution).items():
        number, points = call.operands[place], at.executor.quantized_constants
        (points if number in points else at.changed)[number] = value


@dataclass
class BlockRun:
    """A run of all batches through a block. Numbers are those of values in the executor.

    Attributes:
        plan: plan of the block.
        solvers: solvers of its layers, by the names of their steps.
        inputs: names of the block's inputs.
        outputs: name -> number.
        calls: number of the result -> layer to be rounded.
        levels: levels of the block, with its layers as stops.
        changed: number -> float constant of the quantized network that differs.
        errors: of the results, by name, on this rank.
        solved: what has changed.
    """

    plan: QuantPlan
    executor: Executor
    solvers: Mapping[str, LayerSolver]
    inputs: Sequence[str]
    outputs: Mapping[str, int]
    calls: Mapping[int, LayerCall]
    levels: Levels
    ranks: Ranks
    changed: dict[int, torch.Tensor]
    errors: dict[str, Rows] = field(default_factory=dict)
    solved: SolvedLayers = field(default_factory=SolvedLayers)


def start_run(
    state: ConversionState,
    solvers: Mapping[str, LayerSolver],
    trained: ConversionState | None = None,
) -> BlockRun:
    """Return the run of a block, with the levels of its values. See `run_block`."""
    module = runtime_module(replace(trained or state, graph=state.graph))
    executor = Executor(replace(state.graph, module=module), single_run=trained is not None)
    changed = dict[int, torch.Tensor]()
    if trained is not None:
        later = Executor(replace(trained.graph, module=runtime_module(trained)))
        executor.quantized_constants, changed = later.quantized_constants, later.constants
    layers = exclusive_layers(state).values() if solvers else ()
    made = (LayerCall.of(layer, executor) for layer in layers)
    calls = {call.number: call for call in made}
    levels = Levels.of(executor, {number: call.looks for number, call in calls.items()})
    ends = (executor.indices[G.name_of(n)] for n in G.output_nodes(module.graph))
    outputs = dict(zip(state.graph.outputs, ends, strict=True))
    inputs = [i.name for i in state.graph.inputs]
    sides = inputs, outputs, calls, levels
    return BlockRun(state.plan, executor, solvers, *sides, current(), changed)
