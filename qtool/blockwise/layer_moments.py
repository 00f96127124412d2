"""What is gathered of one layer, batch by batch, to round its weights; and their rounding.

The float and the quantized network run side by side. Of a layer x W^T whose inputs in the quantized
network are the rows x, and for which y is wanted, these are X^T X and (Y - X W^T)^T X, summed over
all rows, and some rows themselves, of samples that are kept aside. All of it has a size that the
number of samples does not change. It is the objective of the step `round` (recovery/rounding.py),
there of rows in memory. Outputs do not hear of each other, so a large layer is gathered and rounded
in pieces of some outputs, one after the other or in several processes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from qtool.algorithms.layer_rows import as_matrix, as_weight, input_rows, output_rows
from qtool.algorithms.weight_rounding.gptq import (
    Grid,
    InverseHessian,
    correct_weight,
    invert_hessian,
    round_columns,
)
from qtool.algorithms.weight_rounding.pair_bounds import pair_bounds
from qtool.core.graph import torch_ops
from qtool.core.types import QuantParams
from qtool.planning.plan import QuantPlan

HOLDOUT_EVERY = 4  # every so many samples are for judging alone
HOLDOUT_ROWS = 1024  # rows of these, of all batches together
MAX_ROWS = 1 << 14  # rows of a batch that are looked at
COLUMNS = 1024  # that are rounded with feedback to each other
SHARD_ELEMENTS = 1 << 22  # of the weights of a piece, about


class _HoldoutRows:
    """Some rows of all batches, in one place: [groups, at most ASIDE, features]. Pieces of memory
    that stay between those that come and go would keep these from being used again."""

    def __init__(self, batches: int) -> None:
        self._batches, self._seen, self._count = batches, 0, 0
        self._all: torch.Tensor | None = None

    def wanted(self) -> int:
        """How many of the next batch."""
        return (
            HOLDOUT_ROWS * (self._seen + 1) // self._batches
            - HOLDOUT_ROWS * self._seen // self._batches
        )

    def add(self, rows: torch.Tensor) -> None:
        if self._all is None:
            self._all = rows.new_empty(rows.shape[0], HOLDOUT_ROWS, rows.shape[2])
        end = self._count + rows.shape[1]
        self._all[:, self._count : end] = rows
        self._seen, self._count = self._seen + 1, end

    @property
    def all(self) -> torch.Tensor:
        assert self._all is not None
        return self._all[:, : self._count]


class InputMoments:
    """X^T X of what one or more layers read, and rows of samples aside.

    squares: of each COLUMNS that are rounded together with themselves and with those behind them:
    float32 [groups, COLUMNS, ...]; the other half is never asked for.
    """

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.squares: list[torch.Tensor] = []
        self.aside = _HoldoutRows(batches)
        self._inverses: dict[int, InverseHessian] = {}

    def add(self, node: fx.Node, x: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Sees a batch, whose first sample is number `first`; returns its rows as learned from and
        as kept aside."""
        learned, aside = _split(x, first)
        rows = input_rows(node, learned, MAX_ROWS)
        kept = input_rows(node, aside, self.aside.wanted())
        for k, part in enumerate(rows.split(COLUMNS, 2)):
            later = rows[:, :, k * COLUMNS :]
            if k == len(self.squares):
                self.squares.append(torch.zeros(len(rows), part.shape[2], later.shape[2]))
            self.squares[k].baddbmm_(part.mT, later)
        self.aside.add(kept)
        return rows, kept

    def inverse(self, start: int, end: int) -> InverseHessian:
        """Of the moments of these columns."""
        if start not in self._inverses:
            own = self.squares[start // COLUMNS][:, :, : end - start]
            self._inverses[start] = invert_hessian(own)
        return self._inverses[start]


class LayerMoments:
    """Of some outputs of a layer what is missing, times the inputs: float32 [groups, rows, d].

    weight: as it is, [groups, rows, d]. rows: which of its outputs these are.
    """

    def __init__(
        self, node: fx.Node, inputs: InputMoments, weight: torch.Tensor, rows: slice
    ) -> None:
        self.node, self.inputs, self.rows = node, inputs, rows
        self.weight = weight[:, rows]
        self.whole = self.weight.shape[1] == weight.shape[1]
        self.missing = torch.zeros_like(self.weight)
        self._aside = _HoldoutRows(inputs.batches)

    def add(
        self, rows: tuple[torch.Tensor, torch.Tensor], wanted: torch.Tensor, first: int
    ) -> None:
        """Sees a batch: what `Inputs.add` gave of it, and what is wanted of the layer."""
        learned, aside = _split(wanted, first)
        lacks = (
            output_rows(self.node, learned, MAX_ROWS)[:, :, self.rows] - rows[0] @ self.weight.mT
        )
        self.missing.baddbmm_(lacks.mT, rows[0])
        wanted_aside = output_rows(self.node, aside, self._aside.wanted())[:, :, self.rows]
        self._aside.add(wanted_aside - rows[1] @ self.weight.mT)

    def params_of(self, params: QuantParams) -> QuantParams:
        """Of these outputs, from those of the layer."""
        if self.whole or params.axis is None:
            return params
        scale, zero = params.scale[self.rows], params.zero_point[self.rows]
        return replace(params, scale=scale, zero_point=zero)

    def nearest(self, params: QuantParams, shape: torch.Size) -> torch.Tensor:
        """Each weight at its nearest code. params, shape: of these outputs."""
        return params.round_trip(as_weight(self.node, self.weight, shape))

    def rounded(
        self, params: QuantParams, shape: torch.Size, plan: QuantPlan
    ) -> torch.Tensor | None:
        """The weights on their grid, as the layer has them; None where the nearest codes are nearer
        on the rows kept aside.

        Args:
            params, shape: of these outputs. plan: whose target may limit pairs of weights.

        Raises:
            torch.linalg.LinAlgError: inputs too much alike.
        """
        x, lacks, weight = self.inputs.aside.all, self._aside.all, self.weight
        off = as_matrix(self.node, self.nearest(params, shape)) - weight
        before = torch.baddbmm(lacks, x, off.mT, alpha=-1).square_().sum()
        del off
        found, lacks = self._solved(weight, self.missing, lacks, params, shape, plan)
        if x.shape[1] and not lacks.square_().sum() < before:
            return None
        return as_weight(self.node, found, shape)

    def _solved(
        self,
        exact: torch.Tensor,
        missing: torch.Tensor,
        lacks: torch.Tensor,
        params: QuantParams,
        shape: torch.Size,
        plan: QuantPlan,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Some columns after the others, each towards what those before have left, as far as that
        repairs rows kept aside; and what these lack then."""
        scale, zero = (
            as_matrix(self.node, params.along(t.float(), shape).expand(shape))
            for t in (params.scale, params.zero_point)
        )
        x, found = self.inputs.aside.all, torch.empty_like(exact)
        levels = params.qtype.qmin, params.qtype.qmax
        pairs = pair_bounds(plan, self.node, exact, params, shape)
        for start in range(0, exact.shape[-1], COLUMNS):
            part = slice(start, min(start + COLUMNS, exact.shape[-1]))
            inverse, old = self.inputs.inverse(start, part.stop), exact[:, :, part]
            way = correct_weight(old, missing[:, :, part], inverse) - old
            repaired = x[:, :, part] @ way.mT
            share = (lacks * repaired).sum() / repaired.square_().sum().clamp(min=1e-30)
            grid = Grid(scale[:, :, part], zero[:, :, part], *levels, pairs, start)
            found[:, :, part] = round_columns(old + share.clamp(0, 1) * way, inverse, grid)
            off = found[:, :, part] - old
            later = slice(part.stop, None)  # what is missing of those before is not asked again
            behind = self.inputs.squares[start // COLUMNS][:, :, off.shape[2] :]
            missing[:, :, later].baddbmm_(off, behind, alpha=-1)
            lacks = torch.baddbmm(lacks, x[:, :, part], off.mT, alpha=-1)
        return found, lacks


def output_slices(node: fx.Node, weight: torch.Tensor) -> list[slice]:
    """The outputs of a layer that are rounded together. weight: [groups, out, d]."""
    groups, outputs, inputs = weight.shape
    grouped = groups > 1 or node.target is torch_ops.conv_transpose
    count = outputs if grouped else min(outputs, max(1, SHARD_ELEMENTS // inputs))
    return [slice(start, min(start + count, outputs)) for start in range(0, outputs, count)]


def _split(x: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples to learn from and those kept aside, by their numbers."""
    aside = (torch.arange(len(x)) + first) % HOLDOUT_EVERY == HOLDOUT_EVERY - 1
    return x[~aside], x[aside]
