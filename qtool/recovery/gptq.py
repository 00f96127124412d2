"""Rounding of a weight matrix column by column, each error fed back into the columns behind it.

After GPTQ (Frantar et al. 2022): with the second moments H of the inputs, the error that a rounded
column makes is best repaired by the columns that are still free, and by how much is read from the
Cholesky factor of the inverse of H. Columns are taken in the order of their inputs' size. Unlike
there, the weights first move to what is wanted of the layer, given the inputs that it has in the
quantized network (as in GPTAQ, Li et al. 2025): by a ridge regression, drawn to where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Inverse", "Round", "inverse_of", "round_columns", "towards"]

Round = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(values [groups, out, columns], numbers of these columns) -> values on the grid."""

DAMP = 0.01  # of the mean of the diagonal of H, as its authors have it
BLOCK = 64  # columns whose errors are gathered before they reach those behind the block


@dataclass(frozen=True, eq=False)
class Inverse:
    """The inverse of H, damped: U^T U with columns in this order. upper: U [groups, d, d]."""

    order: torch.Tensor
    upper: torch.Tensor


def inverse_of(coded: torch.Tensor, damp: float = DAMP) -> Inverse:
    """Factorizes the inverse of second moments.

    Args:
        coded: H, sums of xq xq^T: float [groups, d, d]. damp: of the mean of its diagonal.

    Raises:
        torch.linalg.LinAlgError: it is not positive definite even with its damping.
    """
    diagonal = coded.diagonal(dim1=-2, dim2=-1)
    order = diagonal.sum(0).argsort(descending=True, stable=True)
    eye = torch.eye(len(order), dtype=torch.float64, device=coded.device)
    ridge = (damp * diagonal.double().mean(-1)).clamp(min=1e-30)[:, None, None] * eye
    back = order.flip(0)  # a factor of the inverse is the inverse of one from the other end
    lower = torch.linalg.cholesky(coded[:, back][:, :, back].double() + ridge)
    upper = torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False)
    return Inverse(order, upper.flip(1, 2).to(coded.dtype))


def towards(weight: torch.Tensor, missing: torch.Tensor, inverse: Inverse) -> torch.Tensor:
    """Weights whose results lack least of what is missing.

    Args:
        weight: [groups, out, d]. missing: sums of r xq^T for the r that results lack, like it.
    """
    found = torch.empty_like(weight)
    upper = inverse.upper
    found[:, :, inverse.order] = missing[:, :, inverse.order] @ upper.mT @ upper
    return weight + found


def round_columns(weight: torch.Tensor, inverse: Inverse, rounded: Round) -> torch.Tensor:
    """Values on the grid near `weight` in the norm of H.

    Args:
        weight: [groups, out, d]. rounded: see `Round`.
    """
    groups, out, size = weight.shape
    order, upper = inverse.order, inverse.upper
    free, found = weight[:, :, order].clone(), torch.empty_like(weight)
    for start in range(0, size, BLOCK):
        end = min(start + BLOCK, size)
        errors = weight.new_zeros(groups, out, end - start)
        for i in range(start, end):
            column = free[:, :, i : i + 1]
            grid = rounded(column, order[i : i + 1])
            found[:, :, order[i : i + 1]] = grid
            error = (column - grid) / upper[:, i : i + 1, i : i + 1]
            free[:, :, i:end] -= error @ upper[:, i : i + 1, i:end]
            errors[:, :, i - start : i - start + 1] = error
        free[:, :, end:] -= errors @ upper[:, start:end, end:]
    return found
