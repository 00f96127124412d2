"""OpenVINO on x86-64 CPUs: uint8 activations, int8 weights per channel, float biases.

Its low precision transformations read Q/DQ as FakeQuantize and move dequantizations behind the
operators that have integer kernels (OpenVINO documentation: "Low Precision Transformations",
"Quantized models compute and restrictions"). Biases are added after the integer sum, in float.
Activation functions are fused into the layer before them, in float, ahead of its requantization.

Without VNNI its kernels (jit_avx2, jit_sse42, jit_gemm) add pairs of products in 16 bits that
saturate, as ONNX Runtime's do. Measured on 2026.4, with two codes of 127 in each output channel:
input channels 2j and 2j + 1 meet, at each position of the window. In grouped convolutions, which
run as matrix products, places 2j and 2j + 1 meet, position by position. Depthwise convolutions have
no pairs. qtool/core/weight_pairs.py knows both.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from qtool.core import graph as G
from qtool.core.types import UINT8
from qtool.planning.targets import input_blocks, rules
from qtool.planning.targets.base import (
    INTEGER_SCHEMES,
    WEIGHT_ONLY_SCHEMES,
    KernelRule,
    Target,
    Types,
)
from qtool.planning.targets.saturation import saturation_limit

_IN_FLOAT = ("silu", "gelu", "hard_swish", "hard_sigmoid", "sigmoid", "tanh", "elu", "leaky_relu")


def _conv(node: fx.Node) -> str | None:
    """Require constant weights, and no padded 1x1 convolution with strides.

    OpenVINO 2026.4 moves the strides of a 1x1 window in front of it, but not the pads.
    """
    args: tuple[Any, ...] = node.args
    pointwise = all(int(size) == 1 for size in G.shape(args[1])[2:])
    if pointwise and any(step > 1 for step in args[3]) and any(args[4]):
        return "OpenVINO gives a padded 1x1 convolution with strides a wrong size"
    return rules.constant_weights(node)


OPENVINO = Target(
    name="openvino",
    description="OpenVINO, CPU plugin, x86-64",
    types=Types(UINT8, bias=None),
    kernels={
        "conv": KernelRule(_conv),
        "linear": KernelRule(
            rules.constant_weights,
            float_output=True,
            schemes=(*INTEGER_SCHEMES, *WEIGHT_ONLY_SCHEMES),
        ),
        "add": KernelRule(rules.tensors_only, opportunistic=True),
        "mul": KernelRule(rules.tensors_only, opportunistic=True),
        "concat": KernelRule(rules.float32, opportunistic=True),
        "global_average_pool": KernelRule(rules.float32, opportunistic=True),
        "average_pool": KernelRule(rules.average_pool, opportunistic=True),
        "max_pool": KernelRule(rules.float32),
        "pad": KernelRule(rules.zero_fill),
        "pass": KernelRule(rules.float32_data),
        **{
            key: KernelRule(rules.float32, opportunistic=True, float_between_qdq=True)
            for key in _IN_FLOAT
        },
    },
    no_kernel={
        **dict.fromkeys(rules.RECURRENT, "left in float: not verified on this target"),
        "conv_transpose": "left in float: not verified on this target",
        **dict.fromkeys(rules.PRODUCTS, "a product of two activations is left in float"),
        "softmax": "left in float, as the runtime does",
    },
    input_block=input_blocks.openvino,
    rewrites=("batch_norm_as_conv", "hold_bias", "stacked_weights"),
    saturation_limit=saturation_limit(UINT8),
    runtime="openvino",
)
