"""ONNX Runtime QLinearSoftmax.

Source: onnxruntime/contrib_ops/cpu/quantization/qlinear_softmax.cc.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from qtool.backends.kernels.params import Kernel, f32
from qtool.backends.onnxruntime.kernels.common import check_byte, scalar32
from qtool.core.quant_params import QuantParams

_FLOAT_MAX = float(np.finfo(np.float32).max)
_RESERVED = 5.0  # nats of headroom the runtime leaves in the sum


def softmax(x: QuantParams, out: QuantParams, *, axis: int = -1) -> Kernel:
    """Return softmax along `axis`: a table of exponentials, float32 sum in order, float32 quotient.

    rint(f32(f32(e * floor(1 / sy)) / sum)) + zero point.

    Args:
        x: per-tensor parameters of the input, uint8 or int8.
        out: per-tensor parameters of the output; use the scale 1/256, as the floor biases results
            for others, in the runtime, too.
        axis: dimension that sums to 1.
    """
    check_byte(x, "input")
    check_byte(out, "output")
    scale_x = float(scalar32(x, "input")[0])
    scale, zero = scalar32(out, "output")
    steps = torch.floor(1.0 / scale)
    tables: dict[int, Tensor] = {}

    def kernel(codes: Tensor) -> Tensor:
        last = codes.movedim(axis, -1)
        length = last.shape[-1]
        if length not in tables:
            tables[length] = _exponentials(scale_x, length)
        table = tables[length]
        shifted = last.to(torch.int64) + (255 - last.amax(-1, keepdim=True).to(torch.int64))
        values = table[shifted]
        # np.add.accumulate adds strictly in order and in float32; torch's sums do neither
        sums = np.add.accumulate(values.numpy(), axis=-1)[..., -1:]
        counts = ((values * steps) / torch.from_numpy(sums)).round_().to(torch.int64) + zero
        result = counts.clamp(max=torch.iinfo(codes.dtype).max).to(codes.dtype)
        return result.movedim(-1, axis)

    return kernel


def _exponentials(scale: float, length: int) -> Tensor:
    """Return exp((i - 255 + shift) * scale) for i = 0 .. 255; the sum limits the shift."""
    headroom = f32(math.log(f32(_FLOAT_MAX / length)))  # the runtime uses logf
    shift = max(0.0, headroom - _RESERVED) / scale
    values = [math.exp((i - 255 + shift) * scale) for i in range(256)]
    return torch.tensor(values, dtype=torch.float64).to(torch.float32)
