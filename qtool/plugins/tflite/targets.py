"""TFLite (LiteRT): int8 as its quantization specification has it, codes of the reference kernels.

Activations int8, any zero point; weights int8, zero point 0, per output channel; biases int32. The
outputs of LOGISTIC and SOFTMAX have scale 1/256 and zero point -128, of TANH 1/128 and 0; pools
have the parameters of their input; inputs of a concat have those of its output, by sharing or by a
QUANTIZE in front (tensorflow: lite/g3doc/performance/quantization_spec.md). A name that ends in
.tflite is a TFLite file, any other a QDQ model in ONNX.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import fx

from qtool.core import graph as G
from qtool.core.schemes import Scheme, When
from qtool.core.types import INT4, INT8, INT16, Fixed
from qtool.core.windows import same_padding
from qtool.planning.targets import rules
from qtool.planning.targets.base import (
    INTEGER_SCHEMES,
    WEIGHT_ONLY_SCHEMES,
    FileForm,
    KernelRule,
    Target,
    Types,
)


def _fixed(scale: float, zero_point: int) -> tuple[Fixed, Fixed]:
    """Return the parameters of an output of 8 bits, and those of all of 16 bits."""
    return Fixed(INT8, scale, zero_point), Fixed(INT16, 2.0**-15)


def _planar(node: fx.Node) -> str | None:
    """Require a 1-d or 2-d convolution; a signal is an image of height 1."""
    if G.rank(node) > 4:
        return "TFLite has no integer convolution over three dimensions"
    return rules.constant_weights(node)


def _transposed(node: fx.Node) -> str | None:
    """Require a transposed convolution without groups and dilation, which TFLite lacks."""
    args: tuple[Any, ...] = node.args
    if args[6] != 1 or any(d != 1 for d in args[7]):
        return "TFLite's transposed convolution has no groups and no dilation"
    return _planar(node)


def _average_pool(node: fx.Node) -> str | None:
    """Require padding that counts in the mean, or that of TFLite's SAME, which does not."""
    args: tuple[Any, ...] = node.args
    source, kernel, stride, padding, ceil_mode, counted, _ = args
    sizes = G.shape(source)[2:]
    if ceil_mode:
        return "ceil_mode has no integer kernel"
    if G.rank(node) > 4:
        return "TFLite has no pool over three dimensions"
    if any(padding) and not counted:
        if not all(isinstance(s, int) for s in sizes):
            return "padding that is left out of the mean needs fixed sizes"
        for size, k, s, p in zip(sizes, kernel, stride, padding, strict=True):
            total = max(same_padding(size, k, s), 0)
            if (total // 2, total - total // 2) != (p, p):
                return "TFLite's average pool cannot leave this padding out of the mean"
    return rules.average_pool(node)


def _max_pool(node: fx.Node) -> str | None:
    args: tuple[Any, ...] = node.args
    if any(d != 1 for d in args[4]):
        return "TFLite has no max pool with dilation"
    if G.rank(node) > 4:
        return "TFLite has no pool over three dimensions"
    return rules.float32(node)


def _stored_slopes(node: fx.Node) -> str | None:
    slope = node.args[1]
    if not isinstance(slope, fx.Node) or slope.op != "get_attr":
        return "its slopes are computed at run time"
    return rules.float32(node)


def _activations(node: fx.Node) -> str | None:
    """Require a product of two activations of equal rank, without a sum."""
    operands: Any = node.args[:2]
    if len(node.args) > 2 or any(n.op == "get_attr" for n in operands):
        return "TFLite multiplies two activations only"
    if G.rank(operands[0]) != G.rank(operands[1]) or G.rank(operands[0]) < 2:
        return "the operands have different ranks"
    return rules.float32(node)


_TYPES = tuple(replace(s, activations=a) for a in (INT8, INT16) for s in INTEGER_SCHEMES)
_DYNAMIC = tuple(Scheme(When.DYNAMIC, weights=t) for t in (None, INT4))
_LINEAR = (*_TYPES, *_DYNAMIC, *WEIGHT_ONLY_SCHEMES)
_INT16_TOO = ("concat", "sigmoid", "softmax", "tanh", "silu", "leaky_relu", "global_average_pool")
"""Operators on any float32 tensor whose kernels take int8 and int16."""

_KERNELS = {
    "conv": KernelRule(_planar, schemes=_TYPES),
    "conv_transpose": KernelRule(_transposed, schemes=_TYPES),
    "linear": KernelRule(rules.constant_weights, schemes=_TYPES),
    "add": KernelRule(rules.tensors_only, opportunistic=True, schemes=_TYPES),
    "mul": KernelRule(rules.tensors_only, opportunistic=True, schemes=_TYPES),
    "matmul": KernelRule(_activations, opportunistic=True, schemes=_TYPES),
    **{key: KernelRule(rules.float32, opportunistic=True, schemes=_TYPES) for key in _INT16_TOO},
    "hard_swish": KernelRule(rules.float32, opportunistic=True),
    "prelu": KernelRule(_stored_slopes, opportunistic=True),
    "average_pool": KernelRule(_average_pool, opportunistic=True, schemes=_TYPES),
    "max_pool": KernelRule(_max_pool),
    "pad": KernelRule(rules.zero_fill),
    **dict.fromkeys(rules.EXTREMES, KernelRule(rules.float32)),
    "pass": KernelRule(rules.float32_data),
}

TFLITE = Target(
    name="tflite",
    description="TFLite (LiteRT), reference kernels",
    types=Types(INT8, symmetric=frozenset({INT16})),
    kernels={
        **_KERNELS,
        "gelu": KernelRule(rules.float32, opportunistic=True),
        "linear": KernelRule(rules.constant_weights, schemes=_LINEAR),
    },
    dynamic_rows=True,
    results_in_parts=True,
    no_kernel={
        **dict.fromkeys(rules.RECURRENT, "left in float: not verified on this target"),
        **dict.fromkeys(
            (p for p in rules.PRODUCTS if p != "matmul"),
            "left in float: not supported on this target yet",
        ),
    },
    weight_only={"embedding": "rows are looked up as codes and then dequantized"},
    rewrites=("batch_norm_as_conv", "average_pool_as_conv", "input_affine", "stacked_weights"),
    file=FileForm(formats=("qdq", "tflite"), passthrough_on_codes=frozenset({"pad"})),
    fixed_outputs={
        "sigmoid": _fixed(1 / 256, -128),
        "softmax": _fixed(1 / 256, -128),
        "tanh": _fixed(1 / 128, 0),
    },
    same_parameters=frozenset({"average_pool"}),
    profile="tflite",
    transformers="dynamic",  # nothing rounds the results of linear layers, and nothing converts
)

TFLITE_MICRO = replace(
    TFLITE,
    name="tflite-micro",
    results_in_parts=False,  # its outputs are codes
    transformers="static",
    description="TensorFlow Lite Micro, for microcontrollers and Ethos-U",
    kernels=_KERNELS,
    rewrites=(*TFLITE.rewrites, "stored_operands", "unfused_clamps"),
    integers_only=True,
    no_kernel={**TFLITE.no_kernel, "gelu": "TensorFlow Lite Micro has no such operator"},
)
