"""Rounding of a weight matrix column by column, each error fed back into the columns behind it.

After GPTQ (Frantar et al. 2022): with the second moments H of the inputs, the error that a rounded
column makes is best repaired by the columns that are still free, and by how much is read from the
Cholesky factor of the inverse of H. Columns are taken in the order of their inputs' size. Unlike
there, the weights first move to what is wanted of the layer, given the inputs that it has in the
quantized network (as in GPTAQ, Li et al. 2025): by a ridge regression, drawn to where they are.
Where a target limits pairs of weights (targets/saturation.py), a rounded column bounds the codes of
the columns that it meets, and what they lose is repaired like any other error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

DAMPING = 0.01  # of the mean of the diagonal of H, as its authors have it
TILE_COLUMNS = 128  # columns of a matrix of which one half is computed
BLOCK_COLUMNS = 64  # columns whose errors are gathered before they reach those behind the block


class PairBounds:
    """The codes that weights may take where two weights of one sign must not sum beyond a limit.

    Args:
        channels: [groups, out / groups]. partners: int64 [d, 2], the columns that a column meets;
            -1 for none. qmin, qmax: of the codes, zero point 0. limit: of the magnitude of a sum.
    """

    def __init__(
        self, channels: torch.Size, partners: torch.Tensor, qmin: int, qmax: int, limit: int
    ) -> None:
        self._partners = [[p for p in row if p >= 0] for row in partners.tolist()]
        shape = (len(partners), *channels)
        self._low = np.full(shape, qmin, np.float32)
        self._high = np.full(shape, qmax, np.float32)
        self._limit = limit

    def clip(self, column: int, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Codes [groups, out] of a column within its bounds."""
        bounded: np.ndarray[Any, Any] = np.clip(codes, self._low[column], self._high[column])
        return bounded

    def update(self, column: int, codes: np.ndarray[Any, Any]) -> None:
        """Bounds the columns that this one meets by its codes [groups, out]."""
        for other in self._partners[column]:
            above = self._limit - np.maximum(codes, 0)
            below = -self._limit - np.minimum(codes, 0)
            np.minimum(self._high[other], above, out=self._high[other])
            np.maximum(self._low[other], below, out=self._low[other])


@dataclass(frozen=True, eq=False)
class Grid:
    """The values of codes qmin to qmax.

    Attributes:
        scale, zero_point: of each weight, [groups, out, d].
        pairs: bounds of the whole matrix, where the target limits pairs.
        first: the column of the whole matrix that is column 0 here.
    """

    scale: torch.Tensor
    zero_point: torch.Tensor
    qmin: int
    qmax: int
    pairs: PairBounds | None = None
    first: int = 0


@dataclass(frozen=True, eq=False)
class InverseHessian:
    """The inverse of H, damped: U^T U with columns in this order. upper: U [groups, d, d]."""

    order: torch.Tensor
    upper: torch.Tensor


def hessian(rows: torch.Tensor) -> torch.Tensor:
    """Sums of x x^T over rows [groups, rows, d]; of what is symmetric one half is computed."""
    width = rows.shape[-1]
    if width < 2 * TILE_COLUMNS:
        return rows.mT @ rows
    found = rows.new_empty(len(rows), width, width)
    for start in range(0, width, TILE_COLUMNS):
        end = min(start + TILE_COLUMNS, width)
        found[:, start:end, start:] = rows[:, :, start:end].mT @ rows[:, :, start:]
        found[:, end:, start:end] = found[:, start:end, end:].mT
    return found


def invert_hessian(hessian: torch.Tensor, damping: float = DAMPING) -> InverseHessian:
    """Factorizes the inverse of second moments.

    Args:
        coded: H, sums of xq xq^T: float [groups, d, d]. damp: of the mean of its diagonal.

    Raises:
        torch.linalg.LinAlgError: it is not positive definite even with its damping.
    """
    diagonal = hessian.diagonal(dim1=-2, dim2=-1)
    order = diagonal.sum(0).argsort(descending=True, stable=True)
    eye = torch.eye(len(order), dtype=torch.float64, device=hessian.device)
    ridge = (damping * diagonal.double().mean(-1)).clamp(min=1e-30)[:, None, None] * eye
    back = order.flip(0)  # a factor of the inverse is the inverse of one from the other end
    lower = torch.linalg.cholesky(hessian[:, back][:, :, back].double() + ridge)
    upper = torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False)
    return InverseHessian(order, upper.flip(1, 2).to(hessian.dtype))


def correct_weight(
    weight: torch.Tensor, missing: torch.Tensor, inverse: InverseHessian
) -> torch.Tensor:
    """Weights whose results lack least of what is missing.

    Args:
        weight: [groups, out, d]. missing: sums of r xq^T for the r that results lack, like it.
    """
    found = torch.empty_like(weight)
    upper = inverse.upper
    found[:, :, inverse.order] = missing[:, :, inverse.order] @ upper.mT @ upper
    return weight + found


def round_columns(weight: torch.Tensor, inverse: InverseHessian, grid: Grid) -> torch.Tensor:
    """Values on the grid near `weight` in the norm of H.

    Args:
        weight: [groups, out, d], on the CPU.
    """
    order, upper = inverse.order, inverse.upper
    free = weight[:, :, order].mT.contiguous()  # [groups, d, out]: a column is one row of memory
    scale, zero = (t[:, :, order].mT.contiguous() for t in (grid.scale, grid.zero_point))
    found = torch.empty_like(free)
    for start in range(0, len(order), BLOCK_COLUMNS):
        end = min(start + BLOCK_COLUMNS, len(order))
        here = (free[:, start:end], upper[:, start:end, start:end])
        columns = (order[start:end] + grid.first).tolist()
        steps = scale[:, start:end], zero[:, start:end]
        errors = _round_block(*here, *steps, grid, columns, found[:, start:end])
        free[:, end:] -= upper[:, start:end, end:].mT @ errors
    result = torch.empty_like(weight)
    result[:, :, order] = found.mT
    return result


def _round_block(
    free: torch.Tensor,
    upper: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor,
    grid: Grid,
    columns: list[int],
    rounded: torch.Tensor,
) -> torch.Tensor:
    """Rounds some columns one after the other into `rounded`; returns their errors.

    In numpy, whose calls cost a tenth of torch's on so few elements.
    """
    values, factor, step, middle = (t.numpy() for t in (free, upper, scale, zero))
    whole, errors = rounded.numpy(), torch.empty_like(free)
    left = errors.numpy()
    for i, column in enumerate(columns):
        codes = np.rint(values[:, i] / step[:, i])
        codes = np.clip(codes, grid.qmin - middle[:, i], grid.qmax - middle[:, i])
        if grid.pairs is not None:
            codes = grid.pairs.clip(column, codes)
            grid.pairs.update(column, codes)
        near = codes * step[:, i]
        error = (values[:, i] - near) / factor[:, i, i, None]
        values[:, i:] -= factor[:, i, i:, None] * error[:, None]
        whole[:, i], left[:, i] = near, error
    return errors
