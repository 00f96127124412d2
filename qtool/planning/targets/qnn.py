"""Qualcomm's neural processors via ONNX Runtime's QNN provider: 8- and 16-bit activations.

From the configuration of ONNX Runtime's own quantizer (onnxruntime.quantization:
execution_providers/qnn/quant_config.py): activations per tensor, uint8 or uint16 with any zero
point; weights int8, symmetric, per output channel for convolutions and per tensor for matrix
products; biases int32. An operator has one type for inputs and output: between 8 and 16 bits there
is a DequantizeLinear and a QuantizeLinear. Sigmoid and Tanh of 16 bits have fixed parameters, and
so has Softmax here: ONNX Runtime's CPU provider, which runs what the processor does not support,
gives wrong codes at other scales (observed in 1.31). 16-bit codes need opset 21.
"""

from __future__ import annotations

from dataclasses import replace

from qtool.core.schemes import Scales
from qtool.core.types import UINT8, UINT16, Fixed
from qtool.planning.targets import rules
from qtool.planning.targets.base import INTEGER_SCHEMES, FileForm, KernelRule, Target, Types

_TYPES = tuple(replace(s, activations=a) for a in (UINT8, UINT16) for s in INTEGER_SCHEMES)
_PER_TENSOR = tuple(replace(s, scales=Scales.TENSOR) for s in _TYPES)
_BETWEEN = ("concat", "sigmoid", "tanh", "softmax", "gelu", "hard_swish", "elu", "leaky_relu")


QNN = Target(
    name="qnn",
    description="Qualcomm QNN, provider of ONNX Runtime",
    types=Types(UINT8),
    kernels={
        "conv": KernelRule(rules.constant_weights, schemes=_TYPES),
        "linear": KernelRule(rules.constant_weights, schemes=_PER_TENSOR),
        "add": KernelRule(rules.tensors_only, opportunistic=True, schemes=_TYPES),
        "mul": KernelRule(rules.tensors_only, opportunistic=True, schemes=_TYPES),
        **{key: KernelRule(rules.float32, opportunistic=True, schemes=_TYPES) for key in _BETWEEN},
        "global_average_pool": KernelRule(rules.float32, opportunistic=True, schemes=_TYPES),
        "average_pool": KernelRule(rules.average_pool, opportunistic=True, schemes=_TYPES),
        "max_pool": KernelRule(rules.float32),
        "pad": KernelRule(rules.zero_fill),
        "pass": KernelRule(rules.float32_data),
    },
    no_kernel={
        **dict.fromkeys(rules.RECURRENT, "left in float: not verified on this target"),
        **dict.fromkeys(rules.PRODUCTS, "left in float: not verified on this target"),
        "conv_transpose": "left in float: not verified on this target",
        "silu": "QNN has no such operator; write x * sigmoid(x)",
    },
    rewrites=("batch_norm_as_conv",),
    file=FileForm(opset=21),
    fixed_outputs={
        "sigmoid": (Fixed(UINT16, 2.0**-16),),
        "softmax": (Fixed(UINT8, 2.0**-8), Fixed(UINT16, 2.0**-16)),
        "tanh": (Fixed(UINT16, 2.0**-15, 2**15),),
    },
)
