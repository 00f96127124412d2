"""Shards of the layers of a level: each is assigned to a rank, which rounds it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from qtool.algorithms.bias_correction import corrected_bias
from qtool.algorithms.exclusive_layers import LayerCall
from qtool.algorithms.layer_rows import has_bias, row_layout
from qtool.algorithms.layer_solution import LayerSolution, broadcast_solution
from qtool.algorithms.weight_rounding.layer_samples import LayerMeans, layer_sums
from qtool.algorithms.weight_rounding.layer_solver import (
    LayerProblem,
    LayerSolver,
    solve_problem,
)
from qtool.algorithms.weight_rounding.pruned_weights import pruned_zeros
from qtool.blockwise.layer_moments import InputMoments, LayerMoments, output_slices
from qtool.core.graph.node_calls import Values
from qtool.distributed import Ranks, balance
from qtool.planning.plan import QuantPlan


@dataclass(frozen=True, eq=False)
class Shard:
    """A part of the outputs of a layer.

    Attributes:
        rank: rounds it.
        rows: its outputs.
        moments: None on other ranks.
        means: those of the layer, in its first shard, if it has a bias.
    """

    call: LayerCall
    rank: int
    rows: slice
    moments: LayerMoments | None
    means: LayerMeans | None = None


def make_shards(ranks: Ranks, calls: Sequence[LayerCall], batches: int) -> list[Shard]:
    """Split layers into shards; each rank gets about the same number of weights."""
    every = [
        (call, weight, rows)
        for call in calls
        for weight in [call.layer.matrix]
        for rows in output_slices(call.layer.node, weight)
    ]
    costs = [float(weight[:, rows].numel()) for _, weight, rows in every]
    inputs: dict[Hashable, InputMoments] = {}
    shards = []
    for (call, weight, rows), rank in zip(every, balance(costs, ranks.size), strict=True):
        moments = means = None
        node = call.layer.node
        if rank == ranks.rank:
            read = inputs.setdefault(_reading(call), InputMoments(batches, has_bias(node)))
            moments = LayerMoments(node, read, weight, rows)
            if has_bias(node) and not rows.start:
                means = LayerMeans(node)
        shards.append(Shard(call, rank, rows, moments, means))
    return shards


def _reading(call: LayerCall) -> Hashable:
    """Return a key that is equal for layers that read the same rows."""
    return call.operands[0], row_layout(call.layer.node), has_bias(call.layer.node)


def add_batch(shards: Sequence[Shard], exact: Values, coded: Values, first: int) -> None:
    """Add a batch to the moments of this rank's shards. first: number of its first sample."""
    rows: dict[Hashable, tuple[torch.Tensor, torch.Tensor]] = {}
    targets: dict[int, torch.Tensor] = {}
    for shard in shards:
        call, moments = shard.call, shard.moments
        if moments is None:
            continue
        read, ids, x = _reading(call), call.experts(exact, coded), coded[call.operands[0]]
        if read not in rows:
            rows[read] = moments.inputs.add(call.layer.node, x, first, ids)
        if call.number not in targets:
            targets = {call.number: call.target(exact, coded)}
        moments.add(rows[read], targets[call.number], first, ids)
        if shard.means is not None:
            shard.means.add(*layer_sums(call.layer.node, x, targets[call.number]))


def solve_by_moments(
    ranks: Ranks, shards: Sequence[Shard], plan: QuantPlan, solvers: Mapping[str, LayerSolver]
) -> LayerSolution:
    """Return the solution of a layer; shards without a better weight have the nearest codes.

    Args:
        shards: those of the layer.
        plan, solvers: see `run_block`.
    """
    first, layer, weight = shards[0], shards[0].call.layer, None
    own = [None if s.moments is None else _solve_shard(s, s.moments, plan, solvers) for s in shards]
    pairs = list(zip(shards, own, strict=True))
    parts = [broadcast_solution(ranks, part, shard.rank) for shard, part in pairs]
    if steps := frozenset[str]().union(*(part.steps for part in parts)):
        weight = torch.empty(layer.weight.shape, dtype=torch.float32)
        for shard, part in zip(shards, parts, strict=True):
            assert part.weight is not None
            weight[shard.rows if len(shards) > 1 else slice(None)] = part.weight
    bias = None if first.means is None else corrected_bias(layer, first.means, weight)
    bias = broadcast_solution(ranks, LayerSolution(bias=bias), first.rank).bias
    note = next((part.note for part in parts if part.note), "")
    return LayerSolution(weight, bias, note, steps)


def _solve_shard(
    shard: Shard, moments: LayerMoments, plan: QuantPlan, solvers: Mapping[str, LayerSolver]
) -> LayerSolution:
    """Return the weights of a shard, the nearest ones where no step has better ones."""
    layer = shard.call.layer
    part = layer.weight if moments.whole else layer.weight[moments.rows]
    moments.centre()
    note = moments.drop_rare_experts(layer.name)
    zeros = pruned_zeros(moments.weight, layer.weight, layer.node)
    params = moments.params_of(layer.weight_params)
    problem = LayerProblem(layer.node, moments.weight, params, part.shape, plan, moments, zeros)
    solution = solve_problem(layer.name, problem, solvers, note)
    return solution if solution.steps else replace(solution, weight=problem.nearest)
