"""What is gathered of one layer, batch by batch, to round its weights; and their rounding.

The float and the quantized network run side by side. Of a layer x W^T whose inputs in the quantized
network are the rows x, and for which y is wanted, these are X^T X and (Y - X W^T)^T X, summed over
all rows, and some rows themselves, of samples that are kept aside. All of it has a size that the
number of samples does not change. It is the objective of the step `round` (recovery/rounding.py),
there of rows in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import fx

from qtool.graph import torch_ops
from qtool.recovery.gptq import Grid, Inverse, inverse_of, round_columns, towards
from qtool.recovery.layer_rows import as_matrix, as_weight, results_of, rows_of
from qtool.types import QuantParams

__all__ = ["Inputs", "LayerMoments"]

KEPT_ASIDE = 4  # every so many samples are for judging alone
ASIDE = 1024  # rows of these, of all batches together
MOST = 1 << 14  # rows of a batch that are looked at
COLUMNS = 1024  # that are rounded with feedback to each other
ELEMENTS = 1 << 24  # of weights that are rounded at once


@dataclass
class Inputs:
    """X^T X of what one or more layers read: float32 [groups, d, d]; and rows of samples aside."""

    batches: int
    squares: torch.Tensor | None = None
    aside: list[torch.Tensor] = field(default_factory=list)
    _inverses: dict[int, Inverse] = field(default_factory=dict)

    def add(self, node: fx.Node, x: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Sees a batch, whose first sample is number `first`; returns its rows as learned from and
        as kept aside."""
        learned, aside = _split(x, first)
        each = -(-ASIDE // self.batches)
        rows, kept = rows_of(node, learned, MOST), rows_of(node, aside, each)
        if self.squares is None:
            self.squares = torch.zeros(rows.shape[0], rows.shape[2], rows.shape[2])
        self.squares.baddbmm_(rows.mT, rows)
        self.aside.append(kept)
        return rows, kept

    @cached_property
    def rows(self) -> torch.Tensor:
        """Those kept aside, when all batches were seen: [groups, rows, d]."""
        return torch.cat(self.aside, 1)

    def inverse(self, start: int, end: int) -> Inverse:
        """Of the moments of these columns."""
        assert self.squares is not None
        if start not in self._inverses:
            self._inverses[start] = inverse_of(self.squares[:, start:end, start:end])
        return self._inverses[start]


@dataclass
class LayerMoments:
    """What is missing of a layer's results, times its inputs: float32 [groups, out, d]."""

    node: fx.Node
    inputs: Inputs
    weight: torch.Tensor  # [groups, out, d]
    missing: torch.Tensor | None = None
    aside: list[torch.Tensor] = field(default_factory=list)

    def add(
        self, rows: tuple[torch.Tensor, torch.Tensor], wanted: torch.Tensor, first: int
    ) -> None:
        """Sees a batch: what `Inputs.add` gave of it, and what is wanted of the layer."""
        learned, aside = _split(wanted, first)
        lacks = results_of(self.node, learned, MOST) - rows[0] @ self.weight.mT
        if self.missing is None:
            self.missing = torch.zeros_like(self.weight)
        self.missing.baddbmm_(lacks.mT, rows[0])
        each = -(-ASIDE // self.inputs.batches)
        self.aside.append(results_of(self.node, aside, each) - rows[1] @ self.weight.mT)

    def rounded(self, params: QuantParams, shape: torch.Size) -> torch.Tensor | None:
        """The weights on their grid, as the layer has them, some outputs after the others: the
        nearest codes where these are nearer on the rows kept aside; None where they are for all.

        Raises:
            torch.linalg.LinAlgError: inputs too much alike.
        """
        assert self.missing is not None
        found, taken = torch.empty(shape), False
        count = max(1, ELEMENTS // self.weight.shape[-1])
        if self.weight.shape[0] > 1 or self.node.target is torch_ops.conv_transpose:
            count = self.weight.shape[1]
        for start in range(0, self.weight.shape[1], count):
            rows = slice(start, start + count)
            part = LayerMoments(self.node, self.inputs, self.weight[:, rows])
            part.missing = self.missing[:, rows]
            whole = self.weight.shape[1] <= count
            own = params if whole else _rows(params, rows)
            place = found if whole else found[rows]
            lacks = torch.cat([each[:, :, rows] for each in self.aside], 1)
            better = part._rounded_rows(own, place.shape, lacks)
            taken |= better is not None
            place.copy_(own.round_trip(part._matrix(place.shape)) if better is None else better)
        return found if taken else None

    def _matrix(self, shape: torch.Size) -> torch.Tensor:
        return as_weight(self.node, self.weight, shape)

    def _rounded_rows(
        self, params: QuantParams, shape: torch.Size, lacks: torch.Tensor
    ) -> torch.Tensor | None:
        """As `rounded`, at once."""
        x = self.inputs.rows
        nearest = as_matrix(self.node, params.round_trip(self._matrix(shape))) - self.weight
        before = (lacks - x @ nearest.mT).square().sum()
        del nearest
        found, lacks = self._solved(params, shape, x, lacks)
        if x.shape[1] and not lacks.square().sum() < before:
            return None
        return as_weight(self.node, found, shape)

    def _solved(
        self, params: QuantParams, shape: torch.Size, x: torch.Tensor, lacks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Some columns after the others, each towards what those before have left, as far as that
        repairs rows kept aside; and what these lack then."""
        assert self.missing is not None
        assert self.inputs.squares is not None
        exact, missing = self.weight, self.missing
        scale, zero = (
            as_matrix(self.node, params.along(t.float(), shape).expand(shape))
            for t in (params.scale, params.zero_point)
        )
        found = torch.empty_like(exact)
        levels = params.qtype.qmin, params.qtype.qmax
        for start in range(0, exact.shape[-1], COLUMNS):
            part = slice(start, min(start + COLUMNS, exact.shape[-1]))
            inverse, old = self.inputs.inverse(start, part.stop), exact[:, :, part]
            way = towards(old, missing[:, :, part], inverse) - old
            repaired = x[:, :, part] @ way.mT
            share = (lacks * repaired).sum() / repaired.square().sum().clamp(min=1e-30)
            grid = Grid(scale[:, :, part], zero[:, :, part], *levels)
            found[:, :, part] = round_columns(old + share.clamp(0, 1) * way, inverse, grid)
            off = found[:, :, part] - old
            missing.baddbmm_(off, self.inputs.squares[:, part], alpha=-1)
            lacks = torch.baddbmm(lacks, x[:, :, part], off.mT, alpha=-1)
        return found, lacks


def _rows(params: QuantParams, rows: slice) -> QuantParams:
    """Of some outputs of a layer, which lie along the first axis of its weights."""
    if params.axis is None:
        return params
    return replace(params, scale=params.scale[rows], zero_point=params.zero_point[rows])


def _split(x: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples to learn from and those kept aside, by their numbers."""
    aside = (torch.arange(len(x)) + first) % KEPT_ASIDE == KEPT_ASIDE - 1
    return x[~aside], x[aside]
