"""QLinearAdd of MLAS on x86-64 without AVX2: float32, without fused multiply-add.

Source: onnxruntime/core/mlas/lib/qladd.cpp (MlasQLinearAddKernelHelper for SSE2).
"""

from __future__ import annotations

from functools import cache

from torch import Tensor

from qtool.backends.kernels.params import Kernel
from qtool.backends.onnxruntime.kernels.elementwise import by_pairs, first_repeats, operands
from qtool.core.quant_params import QuantParams


def add(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    """Rescaled addition of two code tensors of one 8-bit type (broadcasting).

    With ra = f32(sa / sc), rb = f32(sb / sc) and c = zc - (ra * za + rb * zb) the runtime computes
    rint((c + a * ra) + b * rb), each operation rounded to float32. An operand that is repeated
    along the innermost axis is added to c first.
    """
    operands(a, b, out)  # checks them

    @cache
    def straight() -> Kernel:
        return _in_order(a, b, out)

    @cache
    def exchanged() -> Kernel:
        return _in_order(b, a, out)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        if first_repeats(y.shape, x.shape) and not first_repeats(x.shape, y.shape):
            return exchanged()(y, x)
        return straight()(x, y)

    return kernel


def _in_order(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    ratio_a, ratio_b = scale_a / scale, scale_b / scale
    fixed = zero - (ratio_a * zero_a + ratio_b * zero_b)
    return by_pairs(a, out, lambda x, y: (fixed + x * ratio_a) + y * ratio_b)
