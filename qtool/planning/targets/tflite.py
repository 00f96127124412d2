"""TFLite (LiteRT): int8 as its quantization specification has it, codes of the reference kernels.

Activations int8, any zero point; weights int8, zero point 0, per output channel; biases int32. The
outputs of LOGISTIC and SOFTMAX have scale 1/256 and zero point -128, of TANH 1/128 and 0; pools
have the parameters of their input; inputs of a concat have those of its output, by sharing or by a
QUANTIZE in front (tensorflow: lite/g3doc/performance/quantization_spec.md). qtool writes a QDQ
model in ONNX, not a TFLite file; its integer program computes the codes of the profile.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.types import INT8, QuantParams
from qtool.planning.targets import rules
from qtool.planning.targets.base import (
    INTEGER_SCHEMES,
    WEIGHT_ONLY_SCHEMES,
    FileForm,
    KernelRule,
    Target,
    Types,
)


def _fixed(scale: float, zero_point: int) -> tuple[QuantParams]:
    return (QuantParams(INT8, torch.tensor(scale), torch.tensor(zero_point)),)


def _planar(node: fx.Node) -> str | None:
    """Require a 1-d or 2-d convolution; a signal is an image of height 1."""
    if G.rank(node) > 4:
        return "TFLite has no integer convolution over three dimensions"
    return rules.constant_weights(node)


TFLITE = Target(
    name="tflite",
    description="TFLite (LiteRT), reference kernels",
    types=Types(INT8),
    kernels={
        "conv": KernelRule(_planar),
        "linear": KernelRule(
            rules.constant_weights, schemes=(*INTEGER_SCHEMES, *WEIGHT_ONLY_SCHEMES)
        ),
        "add": KernelRule(rules.tensors_only, opportunistic=True),
        "mul": KernelRule(rules.tensors_only, opportunistic=True),
        "concat": KernelRule(rules.float32, opportunistic=True),
        "sigmoid": KernelRule(rules.float32, opportunistic=True),
        "softmax": KernelRule(rules.float32, opportunistic=True),
        "tanh": KernelRule(rules.float32, opportunistic=True),
        "leaky_relu": KernelRule(rules.float32, opportunistic=True),
        "global_average_pool": KernelRule(rules.float32, opportunistic=True),
        "average_pool": KernelRule(rules.average_pool_inside, opportunistic=True),
        "max_pool": KernelRule(rules.float32),
        "pad": KernelRule(rules.zero_fill),
        "pass": KernelRule(rules.float32_data),
    },
    no_kernel={
        **dict.fromkeys(rules.RECURRENT, "left in float: not verified on this target"),
        "conv_transpose": "left in float: not supported on this target yet",
        "gelu": "left in float: not supported on this target yet",
        "hard_swish": "left in float: not supported on this target yet",
        **dict.fromkeys(rules.PRODUCTS, "left in float: not supported on this target yet"),
        "silu": "TFLite has no such operator; write x * sigmoid(x)",
    },
    rewrites=("batch_norm_as_conv",),
    file=FileForm(passthrough_on_codes=frozenset({"pad"})),
    fixed_outputs={
        "sigmoid": _fixed(1 / 256, -128),
        "softmax": _fixed(1 / 256, -128),
        "tanh": _fixed(1 / 128, 0),
    },
    same_parameters=frozenset({"average_pool"}),
    profile="tflite",
)
