"""QLinearAdd and QLinearMul of MLAS without vector instructions: WebAssembly, and ARM in part.

Codes are dequantized, added or multiplied in float32, divided by the output's scale and clamped;
the zero point is added before the rounding. Sources: onnxruntime/core/mlas/lib/qladd.cpp
(MlasQLinearAddKernelRawHelper), qlmul.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qtool.backends.kernels.params import Kernel
from qtool.backends.onnxruntime.kernels.elementwise import by_pairs, operands
from qtool.core.quant_params import QuantParams

Combine = Callable[[Tensor, Tensor], Tensor]


def add(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    """Addition of two code tensors of one 8-bit type (broadcasting).

    rint(clamp(f32(f32(f32(sa (a - za)) + f32(sb (b - zb))) / sc)) + zc).
    """
    return _combined(a, b, out, torch.add)


def mul(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    """Product of two code tensors of one 8-bit type (broadcasting), in the steps of `add`."""
    return _combined(a, b, out, torch.mul)


def _combined(a: QuantParams, b: QuantParams, out: QuantParams, combine: Combine) -> Kernel:
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    low, high = out.qtype.qmin - zero, out.qtype.qmax - zero

    def values(x: Tensor, y: Tensor) -> Tensor:
        real = combine((x - zero_a) * scale_a, (y - zero_b) * scale_b)
        return (real / scale).clamp(low, high) + zero

    return by_pairs(a, out, values)
