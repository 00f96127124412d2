"""The layers of a level as shards, which are assigned to ranks, collected for and rounded there."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import load, save
from torch import fx

from qtool.algorithms.layer_rows import as_matrix, row_layout
from qtool.blockwise.layer_moments import InputMoments, LayerMoments, output_slices
from qtool.core.graph.executor import Executor
from qtool.core.types import QuantParams
from qtool.distributed import Ranks, balance
from qtool.planning.plan import QuantPlan

aten = torch.ops.aten


@dataclass(frozen=True)
class BlockLayer:
    """A layer to be rounded: its node, its number, that of what it reads, of its rounded weight, of
    its bias and of the tensor that its result is added to (None: it has none)."""

    node: fx.Node
    number: int
    reads: int
    weight: int
    bias: int | None
    residual: int | None

    @property
    def reading(self) -> Hashable:
        """The same for layers that read the same rows."""
        return self.reads, row_layout(self.node)


@dataclass(frozen=True, eq=False)
class Shard:
    """Some outputs of a layer and the rank that rounds them. moments: where that is this one."""

    layer: BlockLayer
    rank: int
    rows: slice
    moments: LayerMoments | None


def make_shards(
    ranks: Ranks, run: Executor, layers: Sequence[BlockLayer], batches: int
) -> list[Shard]:
    """The layers in pieces; each rank gets about as many weights."""
    every = [
        (layer, weight, rows)
        for layer in layers
        for weight in [as_matrix(layer.node, run.constants[run.calls[layer.weight].operands[0][1]])]
        for rows in output_slices(layer.node, weight)
    ]
    costs = [float(weight[:, rows].numel()) for _, weight, rows in every]
    inputs: dict[Hashable, InputMoments] = {}
    found = []
    for (layer, weight, rows), rank in zip(every, balance(costs, ranks.size), strict=True):
        moments = None
        if rank == ranks.rank:
            read = inputs.setdefault(layer.reading, InputMoments(batches))
            moments = LayerMoments(layer.node, read, weight, rows)
        found.append(Shard(layer, rank, rows, moments))
    return found


def add_batch(
    pieces: Sequence[Shard], exact: list[torch.Tensor], coded: list[torch.Tensor], first: int
) -> None:
    """Of a batch, whose first sample has this number, what the own pieces are rounded by."""
    rows: dict[Hashable, tuple[torch.Tensor, torch.Tensor]] = {}
    wanted: dict[int, torch.Tensor] = {}
    for piece in pieces:
        layer, moments = piece.layer, piece.moments
        if moments is None:
            continue
        read = layer.reading
        if read not in rows:
            rows[read] = moments.inputs.add(layer.node, coded[layer.reads], first)
        if layer.number not in wanted:
            wanted = {layer.number: _target(layer, exact, coded)}
        moments.add(rows[read], wanted[layer.number], first)


def _target(
    layer: BlockLayer, exact: list[torch.Tensor], coded: list[torch.Tensor]
) -> torch.Tensor:
    """The layer's float result, without its bias, and what is missing of the tensor that it will
    be added to."""
    result, beside = exact[layer.number], layer.residual
    if layer.bias is not None:
        last = layer.node.target is aten.linear.default
        result = result - coded[layer.bias].reshape(-1, *[1] * (0 if last else result.dim() - 2))
    if beside is None or exact[beside] is None or coded[beside] is None:
        return result
    if exact[beside].numel() != result.numel():
        return result
    return result + (exact[beside] - coded[beside]).reshape(result.shape)


def round_layer(
    ranks: Ranks,
    pieces: Sequence[Shard],
    params: QuantParams,
    weight: torch.Tensor,
    plan: QuantPlan,
) -> tuple[torch.Tensor | None, bool]:
    """The weights of a layer, some of its pieces at their nearest codes; None where all are. And
    whether its inputs are too much alike."""
    own = {
        i: _round_shard(p.moments, params, weight, plan) for i, p in enumerate(pieces) if p.moments
    }
    found, taken, alike = torch.empty(weight.shape), False, False
    for i, piece in enumerate(pieces):
        result = own.get(i)
        if ranks.is_distributed:
            result = load(ranks.broadcast(None if result is None else save(result), piece.rank))
        assert result is not None
        alike |= "alike" in result
        taken |= "rounded" in result
        place = piece.rows if len(pieces) > 1 else slice(None)
        found[place] = result["rounded" if "rounded" in result else "nearest"]
    return (found if taken else None), alike


def _round_shard(
    moments: LayerMoments, params: QuantParams, weight: torch.Tensor, plan: QuantPlan
) -> dict[str, torch.Tensor]:
    """The weights of a piece, `rounded` or the `nearest`; `alike` where its inputs are."""
    own, rows = moments.params_of(params), slice(None) if moments.whole else moments.rows
    shape, found = weight[rows].shape, dict[str, torch.Tensor]()
    better = None
    try:
        better = moments.rounded(own, shape, plan)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not declare it
        found["alike"] = torch.ones(1)
    if better is not None:
        return {"rounded": better.contiguous()}
    return {**found, "nearest": moments.nearest(own, shape).contiguous()}
