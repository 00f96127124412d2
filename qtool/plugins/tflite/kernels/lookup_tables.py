"""TFLite LOGISTIC, TANH and GELU: tables over 8-bit codes, interpolated for int16.

An 8-bit table entry is computed in float32: f(scale * (code - zero)), times the reciprocal of
the output scale, rounded half away from zero. The transcendental functions are correctly rounded
here, which equals the runtime's libm for every recorded entry.

Sources: tflite/kernels/activations.cc; tflite/kernels/internal/common.h (LUTPopulateInt8);
tflite/kernels/internal/reference/integer_ops/logistic.h, tanh.h, reference/gelu.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from qtool.backends.kernels.codes import all_codes, lookup
from qtool.backends.kernels.params import Kernel, f32, is_int16, per_tensor
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams, torch_dtype
from qtool.core.remedies import CallEdit
from qtool.core.types import QType
from qtool.plugins.tflite.kernels.bounds import in_and_out
from qtool.plugins.tflite.kernels.elementwise import checked_log2
from qtool.plugins.tflite.kernels.quantize import round_half_away_tensor

# The int16 table holds sigmoid(i / 24) * 2**16, rounded, one higher at these places.
_ONE_HIGHER = (
    *(4, 8, 12, 14, 15, 16, 17, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31, 33, 34, 35, 37, 39),
    *(40, 41, 43, 44, 45, 46, 49, 50, 54, 62, 63, 64, 66, 82, 86, 93, 100, 103, 112, 116, 135),
    255,
)


def logistic(x: QuantParams, out: QuantParams) -> Kernel:
    """Return 1 / (1 + exp(-x)) on codes.

    Args:
        x: per-tensor parameters of the input; int16: zero point 0.
        out: scale 1/256 for int8 and uint8; scale 1/32768 and zero point 0 for int16.

    Raises:
        KernelError: other output scales, which the runtime refuses, too.
    """
    scale, _ = per_tensor(out, "output")
    wide = is_int16(x.qtype)
    expected = 1 / 32768 if wide else 1 / 256
    if scale != expected:
        raise KernelError(
            f"LOGISTIC has the fixed output scale {expected}, not {scale:.6g}",
            CallEdit("fix the output's parameters and requantize after it if needed"),
        )
    return _interpolated(x, out, tanh=False) if wide else _table(x, out, _logistic32)


def logistic_output(qtype: QType) -> QuantParams:
    """Return the only parameters that LOGISTIC gives codes of a type."""
    wide = is_int16(qtype)
    scale, zero = (2.0**-15, 0) if wide else (1 / 256, qtype.qmin)
    return QuantParams(qtype, torch.tensor(scale, dtype=torch.float32), torch.tensor(zero))


def tanh(x: QuantParams, out: QuantParams) -> Kernel:
    """Return the hyperbolic tangent on codes; int16 needs output scale 1/32768, zero points 0."""
    if is_int16(x.qtype):
        return _interpolated(x, out, tanh=True)
    return _table(x, out, lambda v: v.to(torch.float64).tanh().to(torch.float32))


def gelu(x: QuantParams, out: QuantParams, *, approximate: str = "none") -> Kernel:
    """Return 0.5 * x * erfc(-x / sqrt(2)), or the tanh form for "tanh", on 8-bit codes."""
    forms = {"none": _gelu_erf32, "tanh": _gelu_tanh32}
    if approximate not in forms:
        raise KernelError(f"GELU has the forms {sorted(forms)}, not {approximate!r}")
    return _table(x, out, forms[approximate])


def _logistic32(v: Tensor) -> Tensor:
    one = torch.ones((), dtype=torch.float32)
    return one / (one + (-v).to(torch.float64).exp().to(torch.float32))


def _gelu_erf32(v: Tensor) -> Tensor:
    root = f32(-math.sqrt(0.5))
    erfc = torch.special.erfc((v * root).to(torch.float64)).to(torch.float32)
    gelu32: Tensor = (v * 0.5) * erfc
    return gelu32


def _gelu_tanh32(v: Tensor) -> Tensor:
    factor = f32(math.sqrt(2 / math.pi))
    inner = (v + ((v * f32(0.044715)) * v) * v) * factor
    return (v * 0.5) * (1.0 + inner.to(torch.float64).tanh().to(torch.float32))


def _table(x: QuantParams, out: QuantParams, function: Callable[[Tensor], Tensor]) -> Kernel:
    scale_in, zero_in, scale_out, zero_out = in_and_out(x, out)
    centred = all_codes(x).to(torch.int64) - zero_in
    values = function(centred.to(torch.float32) * scale_in)
    rounded = round_half_away_tensor(values * f32(1 / scale_out)).to(torch.float32) + zero_out
    codes = rounded.to(torch.float64).clamp(out.qtype.qmin, out.qtype.qmax)
    return lookup(codes.to(torch_dtype(out.qtype)), x.qtype)


def _interpolated(x: QuantParams, out: QuantParams, *, tanh: bool) -> Kernel:
    """Return the int16 kernel: linear interpolation in a 256-entry table of the logistic."""
    scale_in, zero_in = per_tensor(x, "input")
    scale_out, zero_out = per_tensor(out, "output")
    if zero_in or zero_out or checked_log2(scale_out) != -15 or x.qtype != out.qtype:
        raise KernelError(
            "int16 LOGISTIC and TANH need zero points of 0 and the output scale 1/32768"
        )
    multiplier, shift = _table_multiplier(scale_in, 1 if tanh else 0)
    half = (1 << shift) >> 1
    grid = torch.arange(256, dtype=torch.float64) / 24
    table = torch.round(65536 / (1 + torch.exp(-grid))).to(torch.int64)
    table[list(_ONE_HIGHER)] += 1
    bits = 8 if tanh else 9  # tanh(v) = 2 * logistic(2 v) - 1

    def kernel(codes: Tensor) -> Tensor:
        position = (codes.to(torch.int64) * multiplier + half) >> shift
        distance = position.abs()
        cell = (distance >> bits).clamp(max=255)
        low, high = table[cell], table[(cell + 1).clamp(max=255)]
        value = (low << bits) + (distance & ((1 << bits) - 1)) * (high - low)
        top = 0xFFFF << 8 if tanh else 0x7FFF << 10
        value = torch.where(cell >= 255, top, value)
        return _unfold(value, position, tanh=tanh).to(torch.int16)

    return kernel


def _unfold(value: Tensor, position: Tensor, *, tanh: bool) -> Tensor:
    """Mirror the value of the half table, at |v|, for negative v, and drop the spare bits."""
    if tanh:
        mirrored = torch.where(position >= 0, value - (1 << 23), -value + (1 << 23) - 1)
        return (mirrored + (1 << 7)) >> 8
    mirrored = torch.where(position >= 0, value, (1 << 25) - value - 1)
    return (mirrored + (1 << 9)) >> 10


def _table_multiplier(scale: float, largest_shift: int) -> tuple[int, int]:
    """Return factor and right shift from codes to 3 / 2**-12 steps of the table's argument."""
    log2 = checked_log2(scale)
    if log2 is not None and 0 <= 12 + log2 <= largest_shift:
        return 3 << (12 + log2), 0
    real, shift = scale * 4096.0 * 3.0, 0
    while real <= 32767.0 / 2.0 and shift <= 30:
        real, shift = real * 2.0, shift + 1
    return int(real), shift
