"""TensorRT: symmetric int8 activations and weights, Q/DQ where its optimizer wants them.

From "Working with Quantized Types" and "Explicit Quantization" of the TensorRT documentation:
zero points are 0, activations per tensor, weights per output channel; the inputs of layers with
weights are quantized and their outputs are not, since an activation function or an add behind is
fused in higher precision; of the two operands of an add, the one that skipped the layer is
quantized; Q and DQ move over pools, concats and shape operators by themselves. A bias has to stay
float32: DequantizeLinear of int32 is refused ("only activation types allowed as input to this
layer").
"""

from __future__ import annotations

from qtool.core.types import INT8
from qtool.planning.targets import rules
from qtool.planning.targets.base import (
    INTEGER_SCHEMES,
    WEIGHT_ONLY_SCHEMES,
    KernelRule,
    Target,
    Types,
)

TENSORRT = Target(
    name="tensorrt",
    description="TensorRT, explicit quantization",
    types=Types(INT8, bias=None, symmetric=frozenset({INT8})),
    kernels={
        "conv": KernelRule(rules.constant_weights, float_output=True),
        "linear": KernelRule(
            rules.constant_weights,
            float_output=True,
            schemes=(*INTEGER_SCHEMES, *WEIGHT_ONLY_SCHEMES),
        ),
        "add": KernelRule(
            rules.fused_into_layer, float_output=True, float_operand=rules.layer_operand
        ),
        "max_pool": KernelRule(rules.float32),
        "pad": KernelRule(rules.zero_fill),
        "pass": KernelRule(rules.float32_data),
    },
    no_kernel={
        **dict.fromkeys(rules.RECURRENT, "left in float: not verified on this target"),
        "average_pool": "TensorRT moves the quantization from behind it to its inputs",
        "concat": "TensorRT moves the quantization from behind it to its inputs",
        "conv_transpose": "left in float: not supported on this target yet",
        "global_average_pool": "a small operator, left in float",
        **dict.fromkeys(rules.PRODUCTS, "a product of two activations is left in float"),
        "mul": "left in float, fused with its neighbours",
        "softmax": "left in float, as the runtime does",
    },
)
