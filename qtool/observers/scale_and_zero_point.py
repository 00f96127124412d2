"""Scale and zero point of a range."""

from __future__ import annotations

import torch

from qtool.core.errors import CalibrationError
from qtool.core.quant_params import QuantParams
from qtool.core.types import QType

MIN_SCALE = 2.0**-60  # the product of two scales, a bias's scale, is still a normal float32
_MAX = torch.finfo(torch.float32).max


def solve(
    lo: torch.Tensor, hi: torch.Tensor, qtype: QType, symmetric: bool, axis: int | None
) -> QuantParams:
    """Return the parameters that represent [lo, hi], extended to include 0, with `qtype`'s codes.

    Asymmetric: the end codes represent the ends, up to the rounding of the zero point (half to
    even; lo >= 0 gives qmin exactly). Symmetric: the zero point is 0 (the middle code of an
    unsigned type), and the highest code represents the larger magnitude.

    Computed in float64; the scale is rounded to the nearest float32 last. A scale is at least
    2**-60, 1 for the range [0, 0], and never so large that a code dequantizes to Inf: ends near
    or beyond float32's largest value are clipped.

    Args:
        lo: lowest values, rank 0 for `axis` None, else [C].
        hi: highest values, like `lo`.
        qtype: type of the codes.
        symmetric: see above.
        axis: axis of the channels, or None.

    Raises:
        CalibrationError: NaN, Inf, lo > hi or ranks that do not fit `axis`.
    """
    _check(lo, hi, axis)
    lo = lo.double().clamp(-_MAX, 0)
    hi = hi.double().clamp(0, _MAX)
    if symmetric:
        middle = 0 if qtype.signed else (qtype.qmin + qtype.qmax + 1) // 2
        span = _usable(torch.maximum(-lo, hi), qtype.qmax - middle)
        scale, zero = span / (qtype.qmax - middle), torch.full_like(span, middle)
    else:
        span = _usable(hi - lo, qtype.levels)
        scale, zero = span / qtype.levels, torch.round(qtype.qmin - lo * qtype.levels / span)
        zero = zero.clamp(qtype.qmin, qtype.qmax)
    scale = torch.minimum(scale.float(), _largest(zero, qtype))
    return QuantParams(qtype, scale, zero.long(), axis)


def _check(lo: torch.Tensor, hi: torch.Tensor, axis: int | None) -> None:
    rank = 0 if axis is None else 1
    if lo.dim() != rank or hi.shape != lo.shape:
        raise CalibrationError(
            f"a range of shapes {tuple(lo.shape)} and {tuple(hi.shape)} for axis {axis}"
        )
    if not (lo.isfinite() & hi.isfinite()).all():
        raise CalibrationError("a range with NaN or Inf")
    if (lo > hi).any():
        raise CalibrationError("a range whose low end is above its high end")


def _usable(span: torch.Tensor, steps: int) -> torch.Tensor:
    """Return `span`, widened where this number of steps would make the scale too small."""
    return torch.where(span == 0, steps, span.clamp(min=MIN_SCALE * steps))


def _largest(zero: torch.Tensor, qtype: QType) -> torch.Tensor:
    """Return the largest float32 scales with which all codes dequantize to finite values."""
    steps = torch.maximum(zero - qtype.qmin, qtype.qmax - zero).float().double()
    limit = (_MAX / steps).float()
    too_large = limit.double() * steps > _MAX
    down = torch.nextafter(limit, torch.zeros_like(limit))
    return torch.where(too_large, down, limit)
