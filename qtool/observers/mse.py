"""The `mse` observer for weights: the range with the least squared error of known values.

`ranges.mse` works on a histogram. A block of weights has 16 to 256 values and a layer thousands of
blocks, so here all blocks are searched together, each on its values.
"""

from __future__ import annotations

import torch

from qtool.core.quant_params import affine_codes
from qtool.core.types import QType
from qtool.observers.ranges import Range, solve

_BOTH_ENDS = tuple(1 - i / 32 for i in range(1, 20))  # of both ends; at 4 bits 0.5 is never best
_ONE_END = tuple(1 + i / 32 for i in (-6, -4, -3, -2, -1, 1, 2, 3))  # of one end, from there
_BATCH_SIZE = 1 << 22  # values tried together, as many as stay near the cache


def least_error(values: torch.Tensor, qtype: QType, symmetric: bool) -> Range:
    """Return the range of each row that `solve` turns into the least squared quantization error.

    Candidates are the extremes, both ends shrunk equally, and then each end separately, where the
    grid has a zero point. Of equals the first wins. Deterministic.

    Args:
        values: finite floats [C, n].
        qtype: type of the codes.
        symmetric: the zero point is 0.

    Returns:
        Lowest and highest value, float64 [C] each.
    """
    parts = values.split(max(1, _BATCH_SIZE // max(1, values.shape[-1])))
    ranges = [_search(part, qtype, symmetric) for part in parts]
    low, high = (torch.cat(ends) for ends in zip(*ranges, strict=True))
    return low, high


def _search(values: torch.Tensor, qtype: QType, symmetric: bool) -> Range:
    values = values.float()
    low = values.amin(1).double().clamp(max=0)
    high = values.amax(1).double().clamp(min=0)
    if symmetric:
        high = torch.maximum(-low, high)
        low = -high
    best = _Best(values, qtype, symmetric, low, high)
    for ratio in _BOTH_ENDS:
        best.try_range(low * ratio, high * ratio)
    if not symmetric:
        for ratio in _ONE_END:
            best.try_range(best.low * ratio, best.high)
        for ratio in _ONE_END:
            best.try_range(best.low, best.high * ratio)
    return best.low, best.high


class _Best:
    """The best range of each row so far."""

    def __init__(
        self,
        values: torch.Tensor,
        qtype: QType,
        symmetric: bool,
        low: torch.Tensor,
        high: torch.Tensor,
    ) -> None:
        self._values, self._qtype, self._symmetric = values, qtype, symmetric
        self.low, self.high = low, high
        self._error = self._error_of(low, high)

    def try_range(self, low: torch.Tensor, high: torch.Tensor) -> None:
        error = self._error_of(low, high)
        better = error < self._error
        self.low = torch.where(better, low, self.low)
        self.high = torch.where(better, high, self.high)
        self._error = torch.where(better, error, self._error)

    def _error_of(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        params = solve(low, high, self._qtype, self._symmetric, axis=0)
        scale, zero = (t[:, None] for t in (params.scale, params.zero_point.float()))
        codes = affine_codes(self._values, scale, zero, self._qtype)
        off = codes.sub_(zero).mul_(scale).sub_(self._values)  # as `round_trip`, in one place
        return off.square_().sum(1)
