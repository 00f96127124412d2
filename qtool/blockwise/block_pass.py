"""Runs all batches through one block, in the float and the quantized network, level by level.

A layer that reads the result of another one is a level above it (`BlockRun`). For each level, all
batches run up to the inputs of its layers; then the weights of these are rounded, and the batches
continue from there. Live activations are stored on disk in between, so that one batch at a time is
in memory.
"""

from __future__ import annotations

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
from qtool.core.graph.executor import Executor
from qtool.core.graph.levels import Levels, with_known
from qtool.core.graph.node_calls import Values
from qtool.core.memory import trim_memory
from qtool.core.types import Array
from qtool.metrics.output_errors import OutputErrors

_SIZE = "size "
Rows = list[tuple[int, list[float], list[float]]]
"""Number of a measured batch; noise and power of a result, by sample."""


@dataclass(frozen=True)
class BlockStores:
    """Where the activations of a block are.

    Attributes:
        values: inputs of the block and of later ones.
        scratch: values inside the block.
        results: inputs of the next blocks.
        needed: names of those to store of a batch.
    """

    values: ActivationStore
    scratch: ActivationStore
    results: ActivationStore
    needed: Callable[[StoredBatch], Iterable[str]]


def run_block(
    state: ConversionState,
    solvers: Mapping[str, LayerSolver],
    stores: BlockStores,
    batches: Sequence[StoredBatch],
    trained: ConversionState | None = None,
) -> tuple[SolvedLayers, dict[str, OutputErrors]]:
    """Run batches through a block, and solve its layers on the way.

    Args:
        state: state of the block, with solved parameters.
        solvers: solvers of layers, by the names of their steps; none keeps the nearest codes.
        stores: where its activations are.
        batches: the batches to run; those held out are measured, and never learned from.
        trained: a later state of the block, whose quantized network runs; None: that of `state`.

    Returns:
        The solved layers, and name of a result -> its errors on the measured batches.

    Raises:
        FileError: the disk is full.
    """
    at = _start(state, solvers, stores, trained)
    for level in range(at.levels.top + 1):
        calls = [at.calls[number] for number in at.levels.stops_of(level + 1)]
        shards = make_shards(calls, sum(b.fitted for b in batches))
        _advance(at, level, batches, shards)
        for call in calls:
            _solve(at, call, [shard for shard in shards if shard.call is call])
        del shards
        trim_memory()
    return at.solved, _join_errors(at.errors)


def _advance(
    at: BlockRun, level: int, batches: Sequence[StoredBatch], shards: Sequence[Shard]
) -> None:
    """Run all batches through one level, and accumulate the moments of the next level's shards."""
    alive = at.levels.alive(level, at.outputs.values())
    targets = set(at.levels.stops_of(level + 1))  # computed in the float network alone
    fitted = [batch for batch in batches if batch.fitted]
    ends = accumulate(batch.size for batch in fitted)
    firsts = {b.number: end - b.size for b, end in zip(fitted, ends, strict=True)}
    for batch in batches:
        index = batch.number
        exact, coded = _load(at, level, index)
        at.levels.advance(level, exact, coded, alive)
        if batch.fitted:
            add_batch(shards, exact, coded, firsts[index])
        if level < at.levels.top:
            kept = _to_named(exact, alive | targets), _to_named(coded, alive)
            at.stores.scratch.save(index, *kept)
        else:
            _store_results(at, batch, exact, coded)
            at.stores.scratch.drop(index)


def _load(at: BlockRun, level: int, index: int) -> tuple[Values, Values]:
    """Load the values of a batch before a level, in both networks."""
    run = at.levels.executor
    if level == 0:
        both, inputs = at.stores.values.load(index), at.inputs
        known = [{i: side[name] for name, i in inputs.items()} for side in both]
    else:
        known = [_from_named(side) for side in at.stores.scratch.load(index)]
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


def _store_results(at: BlockRun, batch: StoredBatch, exact: Values, coded: Values) -> None:
    """Store the inputs of the next blocks, and measure the errors of the results."""
    both = at.stores.values.load(batch.number)
    for name, i in at.outputs.items():
        both[0][name], both[1][name] = exact[i], coded[i]
        if batch.measured and exact[i].is_floating_point():
            own = _errors(name, exact[i], coded[i])
            row = (batch.number, own.noise[0].tolist(), own.signal[0].tolist())
            at.errors.setdefault(name, []).append(row)
    names = tuple(at.stores.needed(batch))
    at.stores.results.save(batch.number, *({name: side[name] for name in names} for side in both))


def _errors(name: str, exact: torch.Tensor, coded: torch.Tensor) -> OutputErrors:
    """Return the errors of a result, of one element of its first dimension after the other: in
    float64 all of them may not fit into memory."""

    def array(row: torch.Tensor) -> Array:
        return row[None].double().numpy(force=True)

    pairs = zip(torch.atleast_1d(exact), torch.atleast_1d(coded), strict=True)
    return OutputErrors.joined(
        [OutputErrors.of([name], [array(a)], [array(b)], 1) for a, b in pairs]
    )


def _join_errors(errors: Mapping[str, Rows]) -> dict[str, OutputErrors]:
    """Return the errors of the results over all batches."""
    joined = dict[str, OutputErrors]()
    for name, rows in errors.items():
        noise = np.array([[each for _, part, _ in rows for each in part]])
        power = np.array([[each for _, _, part in rows for each in part]])
        joined[name] = OutputErrors((name,), power, noise, noise.shape[1])
    return joined


def _solve(at: BlockRun, call: LayerCall, shards: Sequence[Shard]) -> None:
    """Round the weights of a layer, if that is better than their nearest codes, and correct its
    bias."""
    solution = solve_by_moments(shards, at.state.plan, at.solvers)
    for place, value in at.solved.add(call.layer, solution).items():
        number, points = call.operands[place], at.levels.executor.quantized_constants
        (points if number in points else at.changed)[number] = value


@dataclass
class BlockRun:
    """A run of all batches through a block. Numbers are those of values in the executor.

    Attributes:
        state, solvers, stores: see `run_block`.
        levels: levels of the block, with its layers as stops.
        calls: number of the result -> layer to be rounded.
        changed: number -> float constant of the quantized network that differs.
        errors: errors of the results, by name.
        solved: what has changed.
    """

    state: ConversionState
    solvers: Mapping[str, LayerSolver]
    stores: BlockStores
    levels: Levels
    calls: Mapping[int, LayerCall]
    changed: dict[int, torch.Tensor]
    errors: dict[str, Rows] = field(default_factory=dict)
    solved: SolvedLayers = field(default_factory=SolvedLayers)

    @property
    def inputs(self) -> dict[str, int]:
        """Numbers of the block's inputs, by name."""
        names = (i.name for i in self.state.graph.inputs)
        return dict(zip(names, self.levels.executor.inputs, strict=True))

    @property
    def outputs(self) -> dict[str, int]:
        """Numbers of the block's results, by name."""
        run = self.levels.executor
        ends = (run.indices[name] for name in run.output_names)
        return dict(zip(self.state.graph.outputs, ends, strict=True))


def _start(
    state: ConversionState,
    solvers: Mapping[str, LayerSolver],
    stores: BlockStores,
    trained: ConversionState | None,
) -> BlockRun:
    """Return the run of a block, with the levels of its values. See `run_block`."""
    module = runtime_module(replace(trained or state, graph=state.graph))
    run = Executor(replace(state.graph, module=module), single_run=trained is not None)
    changed = dict[int, torch.Tensor]()
    if trained is not None:
        later = Executor(replace(trained.graph, module=runtime_module(trained)))
        run.quantized_constants, changed = later.quantized_constants, later.constants
    layers = exclusive_layers(state).values() if solvers else ()
    calls = {call.number: call for call in (LayerCall.of(layer, run) for layer in layers)}
    levels = Levels.of(run, {number: call.looks for number, call in calls.items()})
    return BlockRun(state, solvers, stores, levels, calls, changed)
