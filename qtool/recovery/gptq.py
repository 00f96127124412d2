"""Rounding of a weight matrix column by column, each error fed back into the columns behind it.

After GPTQ (Frantar et al. 2022): with the second moments H of the inputs, the error that a rounded
column makes is best repaired by the columns that are still free, and by how much is read from the
Cholesky factor of the inverse of H. Columns are taken in the order of their inputs' size. Unlike
there, the wanted product is that of the float network's inputs, so that a layer repairs what the
layers before it have done to its inputs (as in GPTAQ, Li et al. 2025): the free weights W* that do
this best are a ridge regression, drawn towards W.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["Round", "round_columns", "towards"]

Round = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(values [groups, out, columns], numbers of these columns) -> values on the grid."""

DAMP = 0.01  # of the mean of the diagonal of H, as its authors have it
BLOCK = 64  # columns whose errors are gathered before they reach those behind the block


def towards(
    weight: torch.Tensor, coded: torch.Tensor, cross: torch.Tensor, damp: float = DAMP
) -> torch.Tensor:
    """The weights W* whose product with the coded inputs is nearest to that of `weight` with the
    exact ones.

    Args:
        weight: float64 [groups, out, d].
        coded: H, sums of xq xq^T: float64 [groups, d, d]. cross: sums of x xq^T.
        damp: how strongly they are drawn to `weight`.
    """
    ridge = _ridge(coded, damp)
    eye = torch.eye(coded.shape[-1], dtype=coded.dtype) * ridge
    factor = torch.linalg.cholesky(coded + eye)
    return torch.cholesky_solve((weight @ (cross + eye)).mT, factor).mT


def round_columns(
    weight: torch.Tensor, coded: torch.Tensor, rounded: Round, damp: float = DAMP
) -> torch.Tensor:
    """Values on the grid near `weight` in the norm of H.

    Args:
        weight: float64 [groups, out, d]. coded: H as in `towards`. rounded: see `Round`.

    Raises:
        torch.linalg.LinAlgError: H is not positive definite even with its damping.
    """
    groups, _, size = weight.shape
    order = coded.diagonal(dim1=-2, dim2=-1).sum(0).argsort(descending=True)
    coded = coded[:, order][:, :, order]
    factor = torch.linalg.cholesky(coded + torch.eye(size, dtype=coded.dtype) * _ridge(coded, damp))
    upper = torch.linalg.cholesky(torch.cholesky_inverse(factor), upper=True)
    free, found = weight[:, :, order].clone(), torch.empty_like(weight)
    for start in range(0, size, BLOCK):
        end = min(start + BLOCK, size)
        errors = torch.zeros(groups, weight.shape[1], end - start, dtype=weight.dtype)
        for i in range(start, end):
            column = free[:, :, i : i + 1]
            grid = rounded(column, order[i : i + 1])
            found[:, :, order[i : i + 1]] = grid
            error = (column - grid) / upper[:, i : i + 1, i : i + 1]
            free[:, :, i:end] -= error @ upper[:, i : i + 1, i:end]
            errors[:, :, i - start : i - start + 1] = error
        free[:, :, end:] -= errors @ upper[:, start:end, end:]
    return found


def _ridge(coded: torch.Tensor, damp: float) -> torch.Tensor:
    """[groups, 1, 1]; inputs that are always zero leave it positive."""
    mean = coded.diagonal(dim1=-2, dim2=-1).mean(-1)
    return (damp * mean).clamp(min=1e-30)[:, None, None]
