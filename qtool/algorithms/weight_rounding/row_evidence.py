"""Evidence for the layer solver from rows of calibration samples in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qtool.algorithms.weight_rounding.gptq import InverseHessian, hessian, invert_hessian
from qtool.algorithms.weight_rounding.layer_solver import COLUMNS

Rows = tuple[torch.Tensor, torch.Tensor]
"""Inputs [groups, rows, in] and targets [groups, rows, out] of a layer."""


@dataclass(frozen=True, eq=False)
class RowEvidence:
    """A layer's rows; a `LayerEvidence`.

    Attributes:
        inputs: of the training rows, [groups, rows, in].
        residual_moment: see `LayerEvidence`.
        holdout: see `LayerEvidence`.
        squares: the Hessian of all columns, [groups, in, in]; None where the rows are fewer, or the
            columns more than a block.
    """

    inputs: torch.Tensor
    residual_moment: torch.Tensor
    holdout: Rows
    squares: torch.Tensor | None = None

    @classmethod
    def of(cls, weight: torch.Tensor, training: Rows, holdout: Rows) -> RowEvidence:
        """Return the evidence for float weights [groups, out, in].

        The residuals of the training rows are needed in their products with the inputs alone,
        R^T X = Y^T X - W (X^T X): a product of `in` rows instead of one of all training rows.
        """
        (x, y), (other, target) = training, holdout
        rest = other, torch.baddbmm(target, other, weight.mT, alpha=-1)
        if weight.shape[-1] > min(COLUMNS, x.shape[1]):
            residual = torch.baddbmm(y, x, weight.mT, alpha=-1)
            return cls(x, residual.mT @ x, rest)
        squares = hessian(x)
        return cls(x, torch.baddbmm(y.mT @ x, weight, squares, alpha=-1), rest, squares)

    def inverse(self, start: int, end: int) -> InverseHessian:
        if self.squares is None:
            return invert_hessian(hessian(self.inputs[:, :, start:end]))
        return invert_hessian(self.squares[:, start:end, start:end])

    def products(self, start: int, end: int) -> torch.Tensor:
        if self.squares is None:
            return self.inputs[:, :, start:end].mT @ self.inputs[:, :, end:]
        return self.squares[:, start:end, end:]
