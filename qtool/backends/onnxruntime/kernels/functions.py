"""The float32 functions of ONNX Runtime's kernels, with their polynomials and roundings.

The coefficients and the order of operations are those of MLAS; every step is the correctly rounded
float32 operation. `madd` is a * b + c: rounded once (`fma32`) on x86-64 with AVX2 and on ARM, where
the two operations are fused, and twice (`multiply_then_add`) on older x86-64 and in WebAssembly.

Sources: onnxruntime/core/mlas/lib/logistic.cpp, tanh.cpp, erf.cpp,
intrinsics/avx512/gelu_avx512f.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qtool.backends.kernels.fma import fma32

MultiplyAdd = Callable[[Tensor, Tensor, Tensor], Tensor]

_Coefficients = tuple[float, ...]

_LOGISTIC_P: _Coefficients = (
    *(4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05),
    *(8.51377133304701e-03, 2.48287947061529e-01),
)
_LOGISTIC_Q: _Coefficients = (
    *(6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06),
    *(1.70198817374094e-03, 1.16817656904453e-01, 9.93151921023180e-01),
)
_TANH_P: _Coefficients = (
    *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11),
    *(5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
)
_TANH_Q: _Coefficients = (
    *(1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)
_ERF_SMALL: _Coefficients = (
    *(-5.99104969e-4, 4.99339588e-3, -2.67667342e-2),
    *(1.12818025e-1, -3.76124859e-1, 1.28379151e-1),
)
_ERF_BIG: _Coefficients = (
    *(1.72948930e-5, -3.83208680e-4, 3.88393435e-3, -2.42545605e-2),
    *(1.06777847e-1, 6.34846687e-1, 1.28717512e-1),
)
_EXP = (1.38319808e-3, 8.37550033e-3, 4.16689515e-2, 1.66664466e-1, 4.99999851e-1, 1.0, 1.0)
_ERF_LIMIT, _ERF_SPLIT = 3.925, 0.921875
_EXP_LOWEST, _LOG2_E = -88.3762626647949, 1.44269504088896341
_LOG2_HIGH, _LOG2_LOW, _EXP_SHIFTER = -6.93145752e-1, -1.42860677e-6, 1.25829120e7


def _const(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def multiply_then_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c, product and sum rounded each."""
    return a * b + c


def _horner(x: Tensor, coefficients: _Coefficients, madd: MultiplyAdd) -> Tensor:
    """Polynomial in x, highest coefficient first."""
    total = _const(coefficients[0]).expand(x.shape)
    for c in coefficients[1:]:
        total = madd(total, x, _const(c))
    return total


def logistic(x: Tensor, madd: MultiplyAdd = fma32) -> Tensor:
    """1 / (1 + exp(-x)) as a rational function plus a half, on [-18, 18]."""
    v = x.clamp(-18.0, 18.0)
    squared = v * v
    quotient = (_horner(squared, _LOGISTIC_P, madd) * v) / _horner(squared, _LOGISTIC_Q, madd)
    return (quotient + 0.5).clamp(0.0, 1.0)


def tanh(x: Tensor, madd: MultiplyAdd = fma32) -> Tensor:
    """Hyperbolic tangent as a rational function on [-9, 9]."""
    v = x.clamp(-9.0, 9.0)
    squared = v * v
    return (_horner(squared, _TANH_P, madd) * v) / _horner(squared, _TANH_Q, madd)


def erf(x: Tensor, madd: MultiplyAdd = fma32) -> Tensor:
    """Error function: an odd polynomial up to 0.921875, 1 - exp(polynomial) above."""
    v = x.abs().clamp(max=_ERF_LIMIT)
    small = madd(_horner(v * v, _ERF_SMALL, madd), v, v)
    big = torch.where(v > _ERF_SPLIT, v, torch.zeros_like(v))
    big = 1.0 - _exp(-madd(_horner(big, _ERF_BIG, madd), big, big), madd)
    return torch.copysign(torch.where(v > _ERF_SPLIT, big, small), x)


def _exp(x: Tensor, madd: MultiplyAdd) -> Tensor:
    """exp(x) = 2**r * polynomial(x - r log 2), r rounded by adding a large constant."""
    v = x.clamp(min=_EXP_LOWEST)
    r = madd(_const(_LOG2_E), v, _const(_EXP_SHIFTER)) - _EXP_SHIFTER
    rest = madd(r, _const(_LOG2_LOW), madd(r, _const(_LOG2_HIGH), v))
    return torch.ldexp(_horner(rest, _EXP, madd), r.to(torch.int32))


def gelu(x: Tensor, madd: MultiplyAdd = fma32) -> Tensor:
    """0.5 x (1 + erf(x / sqrt 2))."""
    return (x * 0.5) * (erf(x * 0.70710678118654752440, madd) + 1.0)


def silu(x: Tensor, madd: MultiplyAdd = fma32) -> Tensor:
    """x * logistic(x)."""
    return x * logistic(x, madd)


def hard_sigmoid(
    x: Tensor, alpha: float, beta: float, madd: MultiplyAdd = multiply_then_add
) -> Tensor:
    """clamp(alpha x + beta, 0, 1); product and sum are fused on ARM alone."""
    return madd(x, _const(alpha), _const(beta)).clamp(0.0, 1.0)
