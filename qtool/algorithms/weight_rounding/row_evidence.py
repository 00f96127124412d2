"""Evidence for the layer solver from rows of calibration samples in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qtool.algorithms.weight_rounding.gptq import InverseHessian, hessian, invert_hessian

Rows = tuple[torch.Tensor, torch.Tensor]
"""Inputs [groups, rows, in] and targets [groups, rows, out] of a layer."""


@dataclass(frozen=True, eq=False)
class RowEvidence:
    """A layer's rows; a `LayerEvidence`.

    Attributes:
        inputs: of the training rows, [groups, rows, in].
        residual_moment: see `LayerEvidence`.
        holdout: see `LayerEvidence`.
    """

    inputs: torch.Tensor
    residual_moment: torch.Tensor
    holdout: Rows

    @classmethod
    def of(cls, weight: torch.Tensor, training: Rows, holdout: Rows) -> RowEvidence:
        """Return the evidence for float weights [groups, out, in]."""
        (x, y), (other, target) = training, holdout
        residual = y - x @ weight.mT
        return cls(x, residual.mT @ x, (other, target - other @ weight.mT))

    def inverse(self, start: int, end: int) -> InverseHessian:
        return invert_hessian(hessian(self.inputs[:, :, start:end]))

    def products(self, start: int, end: int) -> torch.Tensor:
        return self.inputs[:, :, start:end].mT @ self.inputs[:, :, end:]
