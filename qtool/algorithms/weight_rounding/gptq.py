"""GPTQ: rounds weights column by column, with error feedback through the inverse Hessian.

The Hessian H of the layer's squared error is the second moment of its inputs. As in GPTQ (Frantar
et al. 2022), the error of a rounded column is compensated by the columns that are not yet rounded,
by amounts from the Cholesky factor of the inverse of H with damping: more than in GPTQ where rows
are fewer than columns, since new inputs have what those of a singular H lack. Columns are rounded
in the order of their inputs' size. Unlike in GPTQ, the weights first move towards the target of the
layer for its inputs in the quantized network (as in GPTAQ, Li et al. 2025), by a ridge regression
centred on the weights. Where a target limits pairs of weights (targets/saturation.py), a rounded
column bounds the codes of its partner columns, and their error is compensated like any other. So is
the error of a pruned weight, which is rounded to zero whatever moved it (SparseGPT, Frantar and
Alistarh 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from qtool.core.types import Array

DAMPING = 0.01  # of the mean of the diagonal of H, as in GPTQ
TILE_COLUMNS = 128  # of the half of H that is computed
BLOCK_COLUMNS = 64  # rounded before their errors are added to the columns behind them


class PairBounds:
    """Bounds of codes where the sum of two weights of one sign has a limit.

    Args:
        channels: [groups, out / groups].
        partners: int64 [d, 2], the columns that a column is summed with; -1 for none.
        qmin, qmax: lowest and highest code; the zero point is 0.
        limit: limit of the magnitude of a sum.
    """

    def __init__(
        self, channels: torch.Size, partners: torch.Tensor, qmin: int, qmax: int, limit: int
    ) -> None:
        self._partners = [[p for p in row if p >= 0] for row in partners.tolist()]
        shape = (len(partners), *channels)
        self._low = np.full(shape, qmin, np.float32)
        self._high = np.full(shape, qmax, np.float32)
        self._limit = limit

    def clip(self, column: int, codes: Array) -> Array:
        """Clip the codes [groups, out] of a column to its bounds."""
        bounded: Array = np.clip(codes, self._low[column], self._high[column])
        return bounded

    def update(self, column: int, codes: Array) -> None:
        """Bound the partners of a column by its codes [groups, out]."""
        for other in self._partners[column]:
            above = self._limit - np.maximum(codes, 0)
            below = -self._limit - np.minimum(codes, 0)
            np.minimum(self._high[other], above, out=self._high[other])
            np.maximum(self._low[other], below, out=self._low[other])


@dataclass(frozen=True, eq=False)
class Grid:
    """The quantization grid of a block of columns.

    Attributes:
        scale, zero_point: parameters of each weight, [groups, out, d].
        qmin, qmax: lowest and highest code.
        pairs: bounds of the whole matrix, where the target limits pairs.
        first: the number of column 0 in the whole matrix.
        zeros: pruned weights, bool [groups, out, d]; None without any.
    """

    scale: torch.Tensor
    zero_point: torch.Tensor
    qmin: int
    qmax: int
    pairs: PairBounds | None = None
    first: int = 0
    zeros: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class InverseHessian:
    """The inverse of the damped Hessian, U^T U, with columns reordered.

    Attributes:
        order: order of the columns, int64 [d].
        upper: U [groups, d, d].
    """

    order: torch.Tensor
    upper: torch.Tensor


def hessian(rows: torch.Tensor) -> torch.Tensor:
    """Return the sums of x x^T over rows [groups, rows, d]; one half is computed, and mirrored."""
    width = rows.shape[-1]
    if width < 2 * TILE_COLUMNS:
        return rows.mT @ rows
    moments = rows.new_empty(len(rows), width, width)
    for start in range(0, width, TILE_COLUMNS):
        end = min(start + TILE_COLUMNS, width)
        moments[:, start:end, start:] = rows[:, :, start:end].mT @ rows[:, :, start:]
        moments[:, end:, start:end] = moments[:, start:end, end:].mT
    return moments


def damping_for(rows: int, columns: int) -> float:
    """Return the damping of a sum of x x^T over rows: the share of missing ones, or GPTQ's."""
    return max(DAMPING, columns / max(rows, 1) - 1)


def invert_hessian(hessian: torch.Tensor, damping: float = DAMPING) -> InverseHessian:
    """Return the factor of the inverse Hessian.

    Args:
        hessian: float [groups, d, d], of the inputs in the quantized network.
        damping: added to the diagonal, in multiples of its mean.

    Raises:
        torch.linalg.LinAlgError: the damped Hessian is not positive definite.
    """
    diagonal = hessian.diagonal(dim1=-2, dim2=-1)
    order = diagonal.sum(0).argsort(descending=True, stable=True)
    eye = torch.eye(len(order), dtype=torch.float64, device=hessian.device)
    ridge = (damping * diagonal.double().mean(-1)).clamp(min=1e-30)[:, None, None] * eye
    back = order.flip(0)  # inverting a factor of the reversed matrix gives one of the inverse
    lower = torch.linalg.cholesky(hessian[:, back][:, :, back].double() + ridge)
    upper = torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False)
    return InverseHessian(order, upper.flip(1, 2).to(hessian.dtype))


def correct_weight(
    weight: torch.Tensor, residual: torch.Tensor, inverse: InverseHessian
) -> torch.Tensor:
    """Return the float weights with the least squared error.

    Args:
        weight: [groups, out, d].
        residual: sums of r x^T for the errors r of the results of `weight`; of its shape.
    """
    correction = torch.empty_like(weight)
    upper = inverse.upper
    correction[:, :, inverse.order] = residual[:, :, inverse.order] @ upper.mT @ upper
    return weight + correction


def round_columns(weight: torch.Tensor, inverse: InverseHessian, grid: Grid) -> torch.Tensor:
    """Return values on the grid near `weight` in the norm of H, by rounding with error feedback.

    Args:
        weight: [groups, out, d], on the CPU.
    """
    order, upper = inverse.order, inverse.upper
    free = weight[:, :, order].mT.contiguous()  # [groups, d, out]: a column is one row of memory
    scale, zero = (t[:, :, order].mT.contiguous() for t in (grid.scale, grid.zero_point))
    pruned = None if grid.zeros is None else grid.zeros[:, :, order].mT.numpy()
    rounded = torch.empty_like(free)
    for start in range(0, len(order), BLOCK_COLUMNS):
        end = min(start + BLOCK_COLUMNS, len(order))
        here = (free[:, start:end], upper[:, start:end, start:end])
        columns = (order[start:end] + grid.first).tolist()
        steps = scale[:, start:end], zero[:, start:end]
        own = None if pruned is None else pruned[:, start:end]
        errors = _round_block(*here, *steps, grid, columns, own, rounded[:, start:end])
        free[:, end:] -= upper[:, start:end, end:].mT @ errors
    result = torch.empty_like(weight)
    result[:, :, order] = rounded.mT
    return result


def _round_block(
    free: torch.Tensor,
    upper: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor,
    grid: Grid,
    columns: list[int],
    pruned: Array | None,
    rounded: torch.Tensor,
) -> torch.Tensor:
    """Round columns one after the other into `rounded`; return their errors.

    In numpy, since its calls cost a tenth of torch's for so few elements.
    """
    values, factor, scales, zeros = (t.numpy() for t in (free, upper, scale, zero))
    output, errors = rounded.numpy(), torch.empty_like(free)
    left = errors.numpy()
    for i, column in enumerate(columns):
        codes = np.rint(values[:, i] / scales[:, i])
        codes = np.clip(codes, grid.qmin - zeros[:, i], grid.qmax - zeros[:, i])
        if pruned is not None:
            codes = np.where(pruned[:, i], 0, codes)
        if grid.pairs is not None:
            codes = grid.pairs.clip(column, codes)
            grid.pairs.update(column, codes)
        near = codes * scales[:, i]
        error = (values[:, i] - near) / factor[:, i, i, None]
        values[:, i:] -= factor[:, i, i:, None] * error[:, None]
        output[:, i], left[:, i] = near, error
    return errors
