"""Moments of a layer, accumulated batch by batch: evidence for the layer solver.

The float and the quantized network run side by side. For a layer X W^T with inputs X in the
quantized network and targets Y, the moments are the Hessian X^T X and (Y - X W^T)^T X, summed over
all rows; some rows of held-out samples are kept, too. Their size does not depend on the number of
samples. Those of a layer with a bias are about the means, which the bias restores.
The layer solver reads them (algorithms/weight_rounding/layer_solver.py). Outputs are independent,
so a large layer is rounded in shards of outputs, one after the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from qtool.algorithms.bias_correction import corrected_bias
from qtool.algorithms.exclusive_layers import LayerCall
from qtool.algorithms.layer_rows import (
    MIN_TOKENS,
    has_bias,
    input_rows,
    output_rows,
    rare_experts,
    row_layout,
)
from qtool.algorithms.layer_solution import LayerSolution
from qtool.algorithms.weight_rounding.gptq import InverseHessian, damping_for, invert_hessian
from qtool.algorithms.weight_rounding.layer_samples import LayerMeans, layer_sums
from qtool.algorithms.weight_rounding.layer_solver import COLUMNS, LayerSolver, solve_from
from qtool.core.graph import torch_ops
from qtool.core.graph.node_calls import Values
from qtool.planning.plan import QuantPlan

HOLDOUT_EVERY = 4  # every n-th sample is held out
HOLDOUT_ROWS = 1024  # of all batches
MAX_ROWS = 1 << 14  # per batch
SHARD_ELEMENTS = 1 << 22  # weights of a shard, approximately


class _HoldoutRows:
    """Held-out rows of all batches in one tensor: [groups, up to HOLDOUT_ROWS, features].

    Small tensors that stay between temporary ones would fragment memory.
    """

    def __init__(self, batches: int) -> None:
        self._batches, self._added, self._count = batches, 0, 0
        self._all: torch.Tensor | None = None

    def next_count(self) -> int:
        """Return how many rows to take of the next batch."""
        return (
            HOLDOUT_ROWS * (self._added + 1) // self._batches
            - HOLDOUT_ROWS * self._added // self._batches
        )

    def add(self, rows: torch.Tensor) -> None:
        if self._all is None:
            self._all = rows.new_empty(rows.shape[0], HOLDOUT_ROWS, rows.shape[2])
        end = self._count + rows.shape[1]
        self._all[:, self._count : end] = rows
        self._added, self._count = self._added + 1, end

    @property
    def all(self) -> torch.Tensor:
        assert self._all is not None
        return self._all[:, : self._count]


class InputMoments:
    """The Hessian X^T X of the inputs of one or more layers, and held-out rows of them.

    Attributes:
        squares: each block of COLUMNS times itself and all later columns: float32
            [groups, COLUMNS, ...]; the other half is not needed.
        tokens: training rows of each expert, [experts].
        mean: mean of the training rows that the moments are about once `centre` was called,
            [groups, in]; None without a bias.
    """

    def __init__(self, batches: int, has_bias: bool = False) -> None:
        self.batches, self._has_bias = batches, has_bias
        self.mean: torch.Tensor | None = None
        self._origin: torch.Tensor | None = None  # near the mean, so that no digits are lost
        self._sum, self._count = torch.zeros((), dtype=torch.float64), 0  # training rows
        self.squares: list[torch.Tensor] = []
        self.holdout = _HoldoutRows(batches)
        self.tokens = torch.zeros((), dtype=torch.int64)
        self._inverses: dict[int, InverseHessian] = {}

    def add(
        self, node: fx.Node, x: torch.Tensor, first: int, ids: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a batch; return its training rows and held-out rows.

        Args:
            node: the layer.
            x: its input.
            first: number of the first sample.
            ids: expert of each row, see `input_rows`; None: the layer has no experts.
        """
        training, holdout = _split(x, first)
        experts = (None, None) if ids is None else _split(ids, first)
        rows = input_rows(node, training, MAX_ROWS, experts[0])
        kept = input_rows(node, holdout, self.holdout.next_count(), experts[1])
        if ids is not None:
            self.tokens = self.tokens + rows.any(-1).sum(1)
        self._count += rows.shape[1]
        moved = self._moved(rows) if self._has_bias and rows.shape[1] else rows
        for k, part in enumerate(moved.split(COLUMNS, 2)):
            later = moved[:, :, k * COLUMNS :]
            if k == len(self.squares):
                self.squares.append(
                    torch.zeros(len(rows), part.shape[2], later.shape[2], dtype=torch.float32)
                )
            self.squares[k].baddbmm_(part.mT, later)
        self.holdout.add(kept)
        return rows, kept

    def _moved(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows about the mean of the first batch."""
        if self._origin is None:
            self._origin = rows.mean(1, keepdim=True)
        moved = rows - self._origin
        self._sum = self._sum + moved.sum(1).double()
        return moved

    def centre(self) -> None:
        """Take the moments about the means, once, where the layers have a bias."""
        if self.mean is not None or self._origin is None:
            return
        mean = self._sum / self._count
        for k, squares in enumerate(self.squares):
            later = mean[:, None, k * COLUMNS :]
            own = later[:, :, : squares.shape[1]].mT * self._count
            squares -= (own * later).float()
        if self.holdout.all.shape[1]:
            self.holdout.all.sub_(self.holdout.all.mean(1, keepdim=True))
        self.mean = (self._origin[:, 0] + mean).float()

    def inverse(self, start: int, end: int) -> InverseHessian:
        """Return the inverse Hessian of a block of columns."""
        if start not in self._inverses:
            own = self.squares[start // COLUMNS][:, :, : end - start]
            self._inverses[start] = invert_hessian(own, damping_for(self._count, end - start))
        return self._inverses[start]


class LayerMoments:
    """Moments of some outputs of a layer; a `LayerEvidence` from all data.

    Args:
        weight: weight of the whole layer, float [groups, out, d].
        rows: the outputs of this shard.
    """

    def __init__(
        self, node: fx.Node, inputs: InputMoments, weight: torch.Tensor, rows: slice
    ) -> None:
        self.node, self.inputs, self.rows = node, inputs, rows
        self.weight = weight[:, rows]
        self.whole = self.weight.shape[1] == weight.shape[1]
        self.residual_moment = torch.zeros_like(self.weight)
        self._errors = torch.zeros(self.weight.shape[:2], dtype=torch.float64)
        self._holdout = _HoldoutRows(inputs.batches)

    def add(
        self,
        rows: tuple[torch.Tensor, torch.Tensor],
        target: torch.Tensor,
        first: int,
        ids: torch.Tensor | None = None,
    ) -> None:
        """Add a batch: the rows that `InputMoments.add` returned, and the targets of the layer."""
        parts = _split(target, first)
        experts = (None, None) if ids is None else _split(ids, first)
        limits = MAX_ROWS, self._holdout.next_count()
        error, holdout_error = (
            output_rows(self.node, part, limit, own)[:, :, self.rows] - each @ self.weight.mT
            for part, limit, own, each in zip(parts, limits, experts, rows, strict=True)
        )
        self.residual_moment.baddbmm_(error.mT, rows[0])
        self._errors += error.sum(1).double()
        self._holdout.add(holdout_error)

    def centre(self) -> None:
        """Take the moments about the means where the layer has a bias; call it once."""
        self.inputs.centre()
        if (mean := self.inputs.mean) is None:
            return
        self.residual_moment -= self._errors.float()[:, :, None] * mean[:, None]
        if self._holdout.all.shape[1]:
            self._holdout.all.sub_(self._holdout.all.mean(1, keepdim=True))

    def drop_rare_experts(self, layer: str) -> str:
        """Drop the moments of experts with few tokens, and return a sentence that names them.

        Moments of zero round to nearest. Without experts there is nothing to drop.
        """
        if not (tokens := self.inputs.tokens).dim():
            return ""
        rare = tokens < MIN_TOKENS
        for moments in (self.residual_moment, *self.inputs.squares):
            moments[rare] = 0
        return rare_experts(layer, tokens)

    @property
    def holdout(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs.holdout.all, self._holdout.all

    def inverse(self, start: int, end: int) -> InverseHessian:
        return self.inputs.inverse(start, end)

    def effect(self, change: torch.Tensor, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        return change, self.inputs.squares[start // COLUMNS][:, :, change.shape[-1] :]


def output_slices(node: fx.Node, weight: torch.Tensor) -> list[slice]:
    """Return the outputs of each shard of a layer. weight: [groups, out, d]."""
    groups, outputs, inputs = weight.shape
    grouped = groups > 1 or node.target is torch_ops.conv_transpose
    count = outputs if grouped else min(outputs, max(1, SHARD_ELEMENTS // inputs))
    return [slice(start, min(start + count, outputs)) for start in range(0, outputs, count)]


def _split(x: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Split a batch into training and held-out samples, by their numbers."""
    holdout = (torch.arange(len(x)) + first) % HOLDOUT_EVERY == HOLDOUT_EVERY - 1
    return x[~holdout], x[holdout]


@dataclass(frozen=True, eq=False)
class Shard:
    """A part of the outputs of a layer.

    Attributes:
        rows: its outputs.
        means: those of the layer, in its first shard, if it has a bias.
    """

    call: LayerCall
    rows: slice
    moments: LayerMoments
    means: LayerMeans | None = None


def make_shards(calls: Sequence[LayerCall], batches: int) -> list[Shard]:
    """Split layers into shards."""
    inputs: dict[Hashable, InputMoments] = {}
    shards = []
    for call in calls:
        node, weight = call.layer.node, call.layer.matrix
        read = inputs.setdefault(_reading(call), InputMoments(batches, has_bias(node)))
        for rows in output_slices(node, weight):
            means = LayerMeans(node) if has_bias(node) and not rows.start else None
            shards.append(Shard(call, rows, LayerMoments(node, read, weight, rows), means))
    return shards


def _reading(call: LayerCall) -> Hashable:
    """Return a key that is equal for layers that read the same rows."""
    return call.operands[0], row_layout(call.layer.node), has_bias(call.layer.node)


def add_batch(shards: Sequence[Shard], exact: Values, coded: Values, first: int) -> None:
    """Add a batch to the moments of shards. first: number of its first sample."""
    rows: dict[Hashable, tuple[torch.Tensor, torch.Tensor]] = {}
    targets: dict[int, torch.Tensor] = {}
    for shard in shards:
        call, moments = shard.call, shard.moments
        read, ids, x = _reading(call), call.experts(exact, coded), coded[call.operands[0]]
        if read not in rows:
            rows[read] = moments.inputs.add(call.layer.node, x, first, ids)
        if call.number not in targets:
            targets = {call.number: call.target(exact, coded)}
        moments.add(rows[read], targets[call.number], first, ids)
        if shard.means is not None:
            shard.means.add(*layer_sums(call.layer.node, x, targets[call.number]))


def solve_by_moments(
    shards: Sequence[Shard], plan: QuantPlan, solvers: Mapping[str, LayerSolver]
) -> LayerSolution:
    """Return the solution of a layer; shards without a better weight have the nearest codes.

    Args:
        shards: those of the layer.
        plan, solvers: see `run_block`.
    """
    first, layer, weight = shards[0], shards[0].call.layer, None
    parts = [_solve_shard(shard, plan, solvers) for shard in shards]
    if steps := frozenset[str]().union(*(part.steps for part in parts)):
        weight = torch.empty(layer.weight.shape, dtype=torch.float32)
        for shard, part in zip(shards, parts, strict=True):
            assert part.weight is not None
            weight[shard.rows if len(shards) > 1 else slice(None)] = part.weight
    bias = None if first.means is None else corrected_bias(layer, first.means, weight)
    note = next((part.note for part in parts if part.note), "")
    return LayerSolution(weight, bias, note, steps)


def _solve_shard(
    shard: Shard, plan: QuantPlan, solvers: Mapping[str, LayerSolver]
) -> LayerSolution:
    """Return the weights of a shard, the nearest ones where no step has better ones."""
    layer, moments = shard.call.layer, shard.moments
    rows = None if moments.whole else shard.rows
    moments.centre()
    note = moments.drop_rare_experts(layer.name)
    solution = solve_from(moments, layer, plan, solvers, rows)
    if solution.weight is None:
        solution = replace(solution, weight=layer.part(rows).nearest)
    return replace(solution, note=solution.note or note)
