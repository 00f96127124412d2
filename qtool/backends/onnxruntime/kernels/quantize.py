"""ONNX Runtime QuantizeLinear, DequantizeLinear, and the pair of them (requantize).

Source: onnxruntime/core/mlas/lib/quantize.cpp, intrinsics/avx512/quantize_avx512f.cpp.
"""

from __future__ import annotations

from torch import Tensor

from qtool.backends.kernels.lookup import all_codes, lookup
from qtool.backends.kernels.params import Kernel, per_tensor
from qtool.backends.onnxruntime.kernels.common import check_byte, to_codes, to_float
from qtool.core.quant_params import QuantParams


def quantize(out: QuantParams) -> Kernel:
    """Return the kernel: float32 -> uint8 or int8 codes, rint(f32(x / scale)) + zero point."""
    check_byte(out, "output")
    per_tensor(out, "output")

    def kernel(x: Tensor) -> Tensor:
        return to_codes(x, out)

    return kernel


def requantize(x: QuantParams, out: QuantParams) -> Kernel:
    """Return the kernel of DequantizeLinear, then QuantizeLinear, as a table of 256 codes."""
    check_byte(x, "input")
    check_byte(out, "output")
    return lookup(to_codes(to_float(all_codes(x), x), out), x.qtype)


def dequantize(x: QuantParams) -> Kernel:
    """Return the kernel: codes -> float32, f32(code - zero_point) * scale."""
    check_byte(x, "input")
    per_tensor(x, "input")

    def kernel(codes: Tensor) -> Tensor:
        return to_float(codes, x)

    return kernel
