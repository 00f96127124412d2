"""ONNX Runtime's unary operators on 8-bit codes, as tables of 256.

QLinearSigmoid and QLinearLeakyRelu are tables in the runtime too; the others have no integer
kernel, and the table holds what DequantizeLinear, the float operator and QuantizeLinear give for
each code. Source: onnxruntime/contrib_ops/cpu/quantization/qlinear_lookup_table.cc,
qlinear_activations.cc.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qtool.backends.kernels.codes import all_codes, lookup
from qtool.backends.kernels.fma import fma32
from qtool.backends.kernels.params import Kernel
from qtool.backends.onnxruntime.kernels import functions
from qtool.backends.onnxruntime.kernels.common import check_byte, to_codes, to_float
from qtool.backends.onnxruntime.kernels.functions import MultiplyAdd, multiply_then_add
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams


def _bind(x: QuantParams, out: QuantParams, function: Callable[[Tensor], Tensor]) -> Kernel:
    check_byte(x, "input")
    check_byte(out, "output")
    return lookup(to_codes(function(to_float(all_codes(x), x)), out), x.qtype)


def leaky_relu(x: QuantParams, out: QuantParams, *, alpha: float) -> Kernel:
    """QLinearLeakyRelu: v >= 0 is kept, v < 0 is multiplied by alpha in float32."""
    slope = torch.tensor(alpha, dtype=torch.float32)
    return _bind(x, out, lambda v: torch.where(v >= 0, v, v * slope))


def sigmoid(x: QuantParams, out: QuantParams, *, madd: MultiplyAdd = fma32) -> Kernel:
    """QLinearSigmoid; for `madd` see functions.py."""
    return _bind(x, out, lambda v: functions.logistic(v, madd))


def tanh(x: QuantParams, out: QuantParams, *, madd: MultiplyAdd = fma32) -> Kernel:
    """Tanh between Q and DQ."""
    return _bind(x, out, lambda v: functions.tanh(v, madd))


def hard_swish(
    x: QuantParams, out: QuantParams, *, madd: MultiplyAdd = multiply_then_add
) -> Kernel:
    """HardSwish between Q and DQ, expanded to x * HardSigmoid(x; 1/6, 1/2)."""
    return _bind(x, out, lambda v: v * functions.hard_sigmoid(v, 1 / 6, 0.5, madd))


def silu(x: QuantParams, out: QuantParams, *, madd: MultiplyAdd = fma32) -> Kernel:
    """x * Sigmoid(x) between Q and DQ (QuickGelu with alpha 1)."""
    return _bind(x, out, lambda v: functions.silu(v, madd))


def gelu(
    x: QuantParams, out: QuantParams, *, approximate: str = "none", madd: MultiplyAdd = fma32
) -> Kernel:
    """Gelu between Q and DQ, the erf form; KernelError for others.

    Vectors of 16 only: the runtime computes up to 15 elements at the end with libm's erff.
    """
    if approximate != "none":
        raise KernelError(f"only the erf form of Gelu is reproduced, not {approximate!r}")
    return _bind(x, out, lambda v: functions.gelu(v, madd))
