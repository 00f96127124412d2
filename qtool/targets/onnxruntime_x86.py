"""ONNX Runtime on x86-64 CPUs with VNNI: what its CPU provider fuses into integer kernels.

uint8 activations with int8 weights are the only pair that is fast there; scales and zero points of
activations have to be scalars, weights symmetric. Measured on ONNX Runtime 1.31.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool import graph as G
from qtool.targets.base import KernelRule, Target
from qtool.types import INT8_NARROW, INT32, UINT8

__all__ = ["ONNXRUNTIME_X86"]


def _constant_weights(node: fx.Node) -> str | None:
    weight, bias = node.args[1], G.argument(node, 2, "bias")
    for what, arg in (("weight", weight), ("bias", bias)):
        if isinstance(arg, fx.Node) and arg.op != "get_attr":
            return f"its {what} is computed at run time"
    return _float32(node)


def _tensors_only(node: fx.Node) -> str | None:
    if not all(isinstance(a, fx.Node) for a in node.args[:2]):
        return "one operand is a number, not a tensor"
    if node.kwargs.get("alpha", 1) != 1:
        return "add with alpha has no integer kernel"
    return _float32(node)


def _float32(node: fx.Node, *inputs: fx.Node) -> str | None:
    for each in [node, *(inputs or node.all_input_nodes)]:
        value = G.value(each)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            if value.dtype != torch.float32:
                return (
                    f"{G.name_of(each)} is {str(value.dtype).removeprefix('torch.')}, not float32"
                )
        elif isinstance(value, torch.Tensor):
            return f"{G.name_of(each)} is {str(value.dtype).removeprefix('torch.')}, not float"
    return None


def _moved(node: fx.Node) -> str | None:
    """What is moved has to be float32; where it goes (an index) is of any type."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return _float32(node, source)


def _zero_fill(node: fx.Node) -> str | None:
    if G.argument(node, 2, "value", 0):
        return "it pads with a number other than zero"
    return _float32(node)


def _average_pool(node: fx.Node) -> str | None:
    if G.argument(node, 6, "divisor_override") is not None:
        return "a divisor of its own has no integer kernel"
    return _float32(node)


ONNXRUNTIME_X86 = Target(
    name="onnxruntime-x86",
    description="ONNX Runtime, CPU provider, x86-64 with VNNI",
    activation=UINT8,
    weight=INT8_NARROW,
    bias=INT32,
    kernels={
        "conv": KernelRule(_constant_weights),
        "linear": KernelRule(_constant_weights, float_output=True),
        "add": KernelRule(_tensors_only, follows=True),
        "mul": KernelRule(_tensors_only, follows=True),
        "concat": KernelRule(_float32, follows=True),
        "sigmoid": KernelRule(_float32, follows=True),
        "leaky_relu": KernelRule(_float32, follows=True),
        "silu": KernelRule(_float32, follows=True, in_float=True),
        "gelu": KernelRule(_float32, follows=True, in_float=True),
        "hard_swish": KernelRule(_float32, follows=True, in_float=True),
        "hard_sigmoid": KernelRule(_float32, follows=True, in_float=True),
        "tanh": KernelRule(_float32, follows=True, in_float=True),
        "elu": KernelRule(_float32, follows=True, in_float=True),
        "prelu": KernelRule(_float32, follows=True, in_float=True),
        "global_average_pool": KernelRule(_float32, follows=True),
        "average_pool": KernelRule(_average_pool, follows=True),
        "max_pool": KernelRule(_float32),
        "pad": KernelRule(_zero_fill),
        "rescale": KernelRule(_float32),
        "pass": KernelRule(_moved),
    },
    no_kernel={
        "conv_transpose": "ONNX Runtime has no integer ConvTranspose kernel",
        "matmul": "a product of two activations is not faster in integers",
    },
    on_codes=frozenset({"pad", "rescale"}),
    rewrites=(
        "batch_norm_as_conv",
        "average_pool_as_conv",
        "channel_shuffle",
        "hard_swish",
        "pad_channels",
    ),
    opset=18,
    ir_version=10,
)
