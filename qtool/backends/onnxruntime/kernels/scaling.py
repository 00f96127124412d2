"""How ONNX Runtime scales the sums of QLinearConv, QGemm and QLinearMatMul.

Integer accumulators, one float32 product per output: rint(f32(f32(acc) * m)) + zero point with
m = f32(f32(sx * sw) / sy). uint8 or int8 activations, uint8 or int8 weights, per tensor or per
output channel, any zero points.

Sources: onnxruntime/core/providers/cpu/quantization/qlinearconv.cc, quantize_linear_matmul.cc;
onnxruntime/contrib_ops/cpu/quantization/quant_gemm.cc; onnxruntime/core/mlas/lib/quantize.cpp
(MlasRequantizeOutput), convsym.cpp. CPUs that accumulate uint8 x int8 pairs in saturating 16 bits
(no VNNI) differ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qtool.backends.kernels.params import channel_scales
from qtool.backends.kernels.products import ToCodes
from qtool.backends.onnxruntime.kernels.common import check_byte, saturate, scalar32
from qtool.core.quant_params import QuantParams
from qtool.core.types import Bounds


def scale_sums(
    x: QuantParams,
    w: QuantParams,
    out: QuantParams | None,
    channels: int,
    rank: int,
    bounds: Bounds,
) -> ToCodes:
    """Bind rint(f32(f32(sum) * scale)) + zero point, saturated; see `products.Scale`.

    Without `out` (QGemm without y_scale) the result is f32(f32(sum) * f32(sx * sw)) in float32.
    Bounds are those that saturation implies, or the runtime does not fuse the activation.
    """
    for params, what in ((x, "input"), (w, "weight"), (out, "output")):
        if params is not None:
            check_byte(params, what)
    products = scalar32(x, "input")[0] * torch.tensor(
        channel_scales(w, channels), dtype=torch.float32
    )
    factors = products if out is None else products / scalar32(out, "output")[0]
    factors = factors.reshape(-1, *[1] * rank)

    def scaled(sums: Tensor) -> Tensor:
        # A product of two vectors has no dimension, and one factor.
        return sums.to(torch.float32).mul_(factors if sums.dim() else factors.squeeze())

    if out is None:
        return scaled
    zero = scalar32(out, "output")[1]

    def to_codes(sums: Tensor) -> Tensor:
        rounded = scaled(sums).round_()
        return saturate(rounded.add_(zero) if zero else rounded, out)

    return to_codes
