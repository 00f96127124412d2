"""Shards of the layers of a level: each is assigned to a rank, which rounds it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import load, save
from torch import fx

from qtool.algorithms.bias_correction import corrected_bias
from qtool.algorithms.exclusive_layers import Layer
from qtool.algorithms.layer_rows import (
    channel_mean,
    channel_sums,
    has_bias,
    input_mean,
    input_sums,
    reads_features,
    residual_target,
    row_layout,
)
from qtool.algorithms.weight_rounding.layer_solver import (
    LayerProblem,
    LayerSolver,
    best_solution,
)
from qtool.algorithms.weight_rounding.pruned_weights import pruned_zeros
from qtool.blockwise.layer_moments import InputMoments, LayerMoments, output_slices
from qtool.core.quant_params import QuantParams
from qtool.distributed import Ranks, balance
from qtool.planning.plan import QuantPlan

_Part = tuple[torch.Tensor, float]
"""A sum, and the number of what it sums."""


@dataclass(frozen=True)
class BlockLayer:
    """A layer to be rounded, and the numbers of its values in the executor.

    Attributes:
        layer: the layer, with its constants.
        number: number of its result.
        reads: number of its input.
        weight: number of its quantized weight.
        bias: number of its bias, or None.
        residual: number of the tensor that its result is added to, or None.
        ids: number of the experts of its rows, or None.
    """

    layer: Layer
    number: int
    reads: int
    weight: int
    bias: int | None
    residual: int | None
    ids: int | None = None

    @property
    def node(self) -> fx.Node:
        return self.layer.node

    @property
    def reading(self) -> Hashable:
        """Key that is equal for layers that read the same rows."""
        return self.reads, row_layout(self.node), has_bias(self.node)


@dataclass(frozen=True, eq=False)
class Shard:
    """A part of the outputs of a layer.

    Attributes:
        rank: rounds it.
        rows: its outputs.
        moments: None on other ranks.
        means: those of the layer, in its first shard, if it has a bias.
    """

    layer: BlockLayer
    rank: int
    rows: slice
    moments: LayerMoments | None
    means: LayerMeans | None = None


def make_shards(ranks: Ranks, layers: Sequence[BlockLayer], batches: int) -> list[Shard]:
    """Split layers into shards; each rank gets about the same number of weights."""
    every = [
        (layer, weight, rows)
        for layer in layers
        for weight in [layer.layer.matrix]
        for rows in output_slices(layer.node, weight)
    ]
    costs = [float(weight[:, rows].numel()) for _, weight, rows in every]
    inputs: dict[Hashable, InputMoments] = {}
    shards = []
    for (layer, weight, rows), rank in zip(every, balance(costs, ranks.size), strict=True):
        moments = means = None
        if rank == ranks.rank:
            new = InputMoments(batches, has_bias(layer.node))
            read = inputs.setdefault(layer.reading, new)
            moments = LayerMoments(layer.node, read, weight, rows)
            if has_bias(layer.node) and not rows.start:
                means = LayerMeans(layer.node)
        shards.append(Shard(layer, rank, rows, moments, means))
    return shards


def add_batch(
    shards: Sequence[Shard], exact: list[torch.Tensor], coded: list[torch.Tensor], first: int
) -> None:
    """Add a batch to the moments of this rank's shards. first: number of its first sample."""
    rows: dict[Hashable, tuple[torch.Tensor, torch.Tensor]] = {}
    targets: dict[int, torch.Tensor] = {}
    for shard in shards:
        layer, moments = shard.layer, shard.moments
        if moments is None:
            continue
        read, ids = layer.reading, _ids(layer, exact, coded)
        if read not in rows:
            rows[read] = moments.inputs.add(layer.node, coded[layer.reads], first, ids)
        if layer.number not in targets:
            targets = {layer.number: _target(layer, exact, coded)}
        moments.add(rows[read], targets[layer.number], first, ids)
        if shard.means is not None:
            shard.means.add(coded[layer.reads], targets[layer.number])


def _ids(
    layer: BlockLayer, exact: list[torch.Tensor], coded: list[torch.Tensor]
) -> torch.Tensor | None:
    """Return the expert of each row, -1 where the float network has chosen another."""
    if layer.ids is None:
        return None
    return torch.where(exact[layer.ids] == coded[layer.ids], coded[layer.ids], -1)


def _target(
    layer: BlockLayer, exact: list[torch.Tensor], coded: list[torch.Tensor]
) -> torch.Tensor:
    """Return the layer's float result, plus the error of its residual."""
    result, residual = exact[layer.number], layer.residual
    if residual is None or exact[residual] is None or coded[residual] is None:
        return result
    return residual_target(result, exact[residual], coded[residual])


@dataclass(frozen=True, eq=False)
class SolvedLayer:
    """The result of solving a layer.

    Attributes:
        weight: weight on its grid; None where rounding to nearest is better for all shards.
        steps: names of the steps that solved shards of it.
        singular: the Hessian of its inputs is.
        tokens: number of training tokens of each expert; of rank 0 without experts.
    """

    weight: torch.Tensor | None
    steps: frozenset[str]
    singular: bool
    tokens: torch.Tensor


_NEAREST, _SINGULAR, _TOKENS = "nearest", "singular", "tokens"
"""Keys of a result that are no names of steps."""


def solve_shards(
    ranks: Ranks,
    shards: Sequence[Shard],
    params: QuantParams,
    weight: torch.Tensor,
    plan: QuantPlan,
    solvers: Mapping[str, LayerSolver],
) -> SolvedLayer:
    """Return the solved weights of a layer; shards without a better solution have nearest codes."""
    own = {
        i: _solve_shard(p.moments, params, weight, plan, solvers)
        for i, p in enumerate(shards)
        if p.moments
    }
    solved, steps, singular = torch.empty(weight.shape, dtype=torch.float32), set[str](), False
    tokens = torch.zeros((), dtype=torch.int64)
    for i, shard in enumerate(shards):
        result = own.get(i)
        if ranks.is_distributed:
            result = load(ranks.broadcast(None if result is None else save(result), shard.rank))
        assert result is not None
        singular |= _SINGULAR in result
        tokens = result[_TOKENS]
        (step,) = result.keys() - {_SINGULAR, _TOKENS}
        steps |= {step} - {_NEAREST}
        rows = shard.rows if len(shards) > 1 else slice(None)
        solved[rows] = result[step]
    return SolvedLayer(solved if steps else None, frozenset(steps), singular, tokens)


def solve_bias(
    ranks: Ranks, shards: Sequence[Shard], weight: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the corrected bias of a layer as its file has it; None without a bias.

    Args:
        shards: those of the layer.
        weight: its weight on its grid; None: the nearest codes.
    """
    first = shards[0]
    own = None if first.means is None else corrected_bias(first.layer.layer, first.means, weight)
    if ranks.is_distributed:
        data = save({} if own is None else {"bias": own})
        own = load(ranks.broadcast(data if first.rank == ranks.rank else None, first.rank)).get(
            "bias"
        )
    return None if own is None else first.layer.layer.stored_bias(own)


def _solve_shard(
    moments: LayerMoments,
    params: QuantParams,
    weight: torch.Tensor,
    plan: QuantPlan,
    solvers: Mapping[str, LayerSolver],
) -> dict[str, torch.Tensor]:
    """Return the weights of a shard by the step that solved it, or as the nearest ones."""
    own, rows = moments.params_of(params), slice(None) if moments.whole else moments.rows
    part, best = weight[rows], None
    moments.centre()
    flags = {_TOKENS: moments.drop_rare_experts()}
    zeros = pruned_zeros(moments.weight, weight, moments.node)
    problem = LayerProblem(moments.node, moments.weight, own, part.shape, plan, moments, zeros)
    try:
        best = best_solution(problem, solvers)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not declare it
        flags[_SINGULAR] = torch.ones(1)
    if best is not None:
        return {**flags, best[0]: best[1].contiguous()}
    return {**flags, _NEAREST: problem.nearest.contiguous()}


class LayerMeans:
    """Sums of all rows of a layer, batch by batch: one for each shape of the samples."""

    def __init__(self, node: fx.Node) -> None:
        self._node = node
        self._inputs, self._results = dict[torch.Size, _Part](), dict[torch.Size, _Part]()

    def add(self, x: torch.Tensor, target: torch.Tensor) -> None:
        """Add a batch: the input of the layer in the quantized network, and its target."""
        channel = -1 if reads_features(self._node) else 1
        _add(self._inputs, input_sums(self._node, x))
        _add(self._results, channel_sums(target, channel))

    def mean_input(self) -> torch.Tensor:
        """Return the mean row of inputs, float64 [groups, in]."""
        return input_mean(self._node, list(self._inputs.values()))

    def mean_target(self) -> torch.Tensor:
        """Return the mean target of each channel, float64 [channels]."""
        return channel_mean(list(self._results.values()))


def _add(parts: dict[torch.Size, _Part], new: _Part) -> None:
    known: Mapping[torch.Size, _Part] = parts
    total, weight = known.get(new[0].shape, (0, 0.0))
    parts[new[0].shape] = total + new[0], weight + new[1]
