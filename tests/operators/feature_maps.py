"""Operators on feature maps: arithmetic, activations, pools, resizes, norms."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.operators.case import Case, conv, image, whole

NUMBER = "one operand is a scalar"
NONE = "no integer kernel on onnxruntime"
CLAMP = "clamps in float"
BETWEEN = "in float between dequantize and quantize"
STORED = "no integer ConvTranspose kernel: int8 weights"


def added(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = m.other(x)
    y += x
    return y


def excited(gate: Any) -> Any:
    """Squeeze and excitation."""

    def body(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x * gate(m.up(F.relu(m.down(F.adaptive_avg_pool2d(x, 1)))))

    return body


ARITHMETIC: Mapping[str, Case] = {
    "plus": image(lambda m, x: x + m.other(x), "QLinearConv QLinearAdd", other=conv()),
    "in_place": image(added, "QLinearConv QLinearAdd", other=conv()),
    "add_alpha": image(
        lambda m, x: torch.add(x, m.other(x), alpha=2),
        "QLinearConv Mul QLinearAdd",
        {"mul": NUMBER},
        other=conv(),
    ),
    "add_number": image(lambda m, x: x + 1.5, "Add", {"add": NUMBER}),
    "add_parameter": image(
        lambda m, x: x.relu() + m.scale.weight.view(1, 8, 1, 1),
        "QLinearAdd",
        scale=lambda: nn.PReLU(8),
    ),
    "times": image(lambda m, x: x * m.other(x), "QLinearConv QLinearMul", other=conv()),
    "minus": image(
        lambda m, x: x - m.other(x), "QLinearConv Sub", {"sub.Tensor": NONE}, other=conv()
    ),
    "from_number": image(lambda m, x: 1 - x, "Sub", {"rsub.Scalar": NONE}),
    "div": image(
        lambda m, x: x / (m.other(x).sigmoid() + 1),
        "QLinearConv QLinearSigmoid Add Div",
        {"add": NUMBER, "div.Tensor": NONE},
        other=conv(),
    ),
    "pow": image(lambda m, x: x**2, "Pow", {"pow.Tensor_Scalar": NONE}),
    "exp": image(lambda m, x: x.exp(), "Exp", {"exp.default": NONE}),
    "sqrt": image(
        lambda m, x: x.abs().sqrt(), "Abs Sqrt", {"abs.default": NONE, "sqrt.default": NONE}
    ),
    "cumsum": image(lambda m, x: x.cumsum(1), "CumSum", {"cumsum.default": NONE}),
    "minimum": image(
        lambda m, x: torch.minimum(x, m.other(x)),
        "QLinearConv Min",
        {"minimum.default": NONE},
        other=conv(),
    ),
    "max_dim": image(lambda m, x: x.max(1, keepdim=True)[0] * x, "ReduceMax QLinearMul"),
    "min_dim": image(lambda m, x: x.min(3, keepdim=True).values + x, "ReduceMin QLinearAdd"),
    "amax": image(lambda m, x: x.amax((2, 3), keepdim=True), "ReduceMax"),
    "amin": image(lambda m, x: x.amin(2).unsqueeze(2), "ReduceMin"),
    "clamp": image(lambda m, x: x.clamp(-0.5, 0.5), "Clip", {"clip": CLAMP}),
    "clamp_from_zero": image(lambda m, x: x.clamp(min=0)),
    "mean_over_channels": image(
        lambda m, x: x * x.mean(1, keepdim=True), "ReduceMean QLinearMul", {"mean.dim": NONE}
    ),
    "sum": image(
        lambda m, x: x * x.sum(1, keepdim=True), "ReduceSum QLinearMul", {"sum.dim_IntList": NONE}
    ),
    "variance": image(
        lambda m, x: x + x.var(1, keepdim=True, unbiased=False),
        "ReduceMean ReduceMean Sub Mul Expand QLinearAdd",
        {"var.dim": NONE},
    ),
    "dropout": image(lambda m, x: F.dropout(m.drop(x), 0.5, m.training), drop=nn.Dropout2d),
}

ACTIVATIONS: Mapping[str, Case] = {
    "relu_of_relu": image(
        lambda m, x: m.act(m.other(m.act(x))), "QLinearConv", act=nn.ReLU, other=conv()
    ),
    "module_twice": image(
        lambda m, x: m.other(F.relu(m.other(x))), "QLinearConv QLinearConv", other=conv()
    ),
    "relu6": image(lambda m, x: F.relu6(x)),
    "hard_swish": image(lambda m, x: F.hardswish(x), "QLinearAdd QLinearMul"),
    "hard_swish_module": image(lambda m, x: m.act(x), "QLinearAdd QLinearMul", act=nn.Hardswish),
    "hard_sigmoid": image(lambda m, x: F.hardsigmoid(x), "QLinearAdd"),
    "silu": image(lambda m, x: F.silu(x), "QuickGelu", {"silu": BETWEEN}),
    "gelu": image(lambda m, x: F.gelu(x), "Gelu", {"gelu": BETWEEN}),
    "gelu_tanh": image(lambda m, x: F.gelu(x, approximate="tanh"), "FastGelu", {"gelu": BETWEEN}),
    "leaky_relu": image(lambda m, x: F.leaky_relu(x, 0.2), "QLinearLeakyRelu"),
    "rrelu": image(lambda m, x: F.rrelu(x), "QLinearLeakyRelu"),
    "prelu": image(lambda m, x: m.act(x), "PRelu", {"prelu": BETWEEN}, act=lambda: nn.PReLU(8)),
    "elu": image(lambda m, x: F.elu(x), "Elu", {"elu": BETWEEN}),
    "tanh": image(lambda m, x: x.tanh(), "Tanh", {"tanh": BETWEEN}),
    "sigmoid": image(lambda m, x: torch.sigmoid(x), "QLinearSigmoid"),
    "glu": image(lambda m, x: F.glu(x, 1), "Split Sigmoid Mul", {"glu.default": NONE}, channels=4),
    "se": image(
        excited(torch.sigmoid),
        "QLinearGlobalAveragePool QLinearConv QLinearConv QLinearSigmoid QLinearMul",
        down=conv(4),
        up=lambda: nn.Conv2d(4, 8, 1),
    ),
    "se_hard": image(
        excited(F.hardsigmoid),
        "QLinearGlobalAveragePool QLinearConv QLinearConv QLinearAdd QLinearMul",
        down=conv(4),
        up=lambda: nn.Conv2d(4, 8, 1),
    ),
}

POOLS: Mapping[str, Case] = {
    "mean": image(lambda m, x: x.mean((2, 3), keepdim=True), "QLinearGlobalAveragePool"),
    "mean_of_rows": image(lambda m, x: x.mean(3, keepdim=True), "ReduceMean", {"mean.dim": NONE}),
    "adaptive": image(lambda m, x: m.pool(x), "QLinearConv", pool=lambda: nn.AdaptiveAvgPool2d(4)),
    "adaptive_rows": image(lambda m, x: F.adaptive_avg_pool2d(x, (None, 2)), "QLinearConv"),
    "adaptive_unequal": image(
        lambda m, x: F.adaptive_avg_pool2d(x, (3, 8)),
        "GatherND Gather Gather Gather Gather Where Split Add Add Add Div",
        {"adaptive_avg_pool2d.default": NONE},
    ),
    "adaptive_max": image(lambda m, x: F.adaptive_max_pool2d(x, 4), "NhwcMaxPool"),
    "adaptive_max_unequal": image(
        lambda m, x: F.adaptive_max_pool2d(x, (3, 8)),
        " ".join(["Split"] + ["NhwcMaxPool"] * 11 + ["QLinearConcat"] * 2),
    ),
    "average": image(lambda m, x: F.avg_pool2d(x, 3, 2, 1), "QLinearConv"),
    "average_ceil": image(lambda m, x: F.avg_pool2d(x, 3, 2, ceil_mode=True), "QLinearAveragePool"),
    "average_ceil_counted": image(
        lambda m, x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), "QLinearAveragePool"
    ),
    "average_ceil_inside": image(
        lambda m, x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        "QLinearAveragePool",
    ),
    "average_inside": image(
        lambda m, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), "QLinearAveragePool"
    ),
    "average_divisor": image(
        lambda m, x: F.avg_pool2d(x, 2, divisor_override=3), "QLinearConv Mul", {"mul": NUMBER}
    ),
    "max_ceil": image(lambda m, x: F.max_pool2d(x, 3, 2, ceil_mode=True), "NhwcMaxPool"),
    "max_dilated": image(lambda m, x: F.max_pool2d(x, 3, 1, dilation=2), "NhwcMaxPool"),
    "max_indices": image(lambda m, x: F.max_pool2d(x, 2, return_indices=True)[0], "NhwcMaxPool"),
}

LAYERS: Mapping[str, Case] = {
    "nearest": image(lambda m, x: F.interpolate(x, scale_factor=2), "Resize"),
    "nearest_size": image(lambda m, x: F.interpolate(x, size=(5, 12)), "Resize"),
    "nearest_exact": image(
        lambda m, x: F.interpolate(x, scale_factor=2, mode="nearest-exact"), "Resize"
    ),
    "bilinear": image(
        lambda m, x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "Resize",
        {"upsample_bilinear2d.vec": NONE},
    ),
    "bilinear_size": image(
        lambda m, x: F.interpolate(x, size=(12, 9), mode="bilinear", align_corners=True),
        "Resize",
        {"upsample_bilinear2d.vec": NONE},
    ),
    "softmax": image(
        lambda m, x: F.softmax(x, 1), "Softmax Max", {"softmax": "slower than the float one"}
    ),
    "layer_norm": image(
        lambda m, x: m.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
        "LayerNormalization",
        {"layer_norm.default": NONE},
        norm=lambda: nn.LayerNorm(8),
    ),
    "instance_norm": image(
        lambda m, x: m.norm(x),
        "InstanceNormalization",
        {"instance_norm.default": NONE},
        norm=lambda: nn.InstanceNorm2d(8, affine=True),
    ),
    "group_norm": image(
        lambda m, x: m.norm(x),
        "Cast Cast InstanceNormalization Mul Add",
        {"group_norm.default": NONE},
        norm=lambda: nn.GroupNorm(2, 8),
    ),
    "unfused_norm": image(
        lambda m, x: m.norm(F.relu(x)), "QLinearConv", norm=lambda: nn.BatchNorm2d(8)
    ),
    "transposed": image(
        lambda m, x: m.up(x),
        "ConvTranspose Max",
        {"conv_transpose": STORED},
        up=lambda: nn.ConvTranspose2d(8, 8, 3, 2, 1, 1),
    ),
    "transposed_groups": image(
        lambda m, x: m.up(x),
        "ConvTranspose Max",
        {"conv_transpose": STORED},
        up=lambda: nn.ConvTranspose2d(8, 8, 2, 2, groups=2, bias=False),
    ),
    "functional": image(
        lambda m, x: F.relu(F.conv2d(x, m.c.weight, None, 2, 1)), "QLinearConv", c=conv(8, 3)
    ),
    "same_padding": image(
        lambda m, x: m.c(x), "QLinearConv", c=conv(8, 4, padding="same", dilation=2)
    ),
    "transposed1d": whole(
        lambda m, x: m.last(m.up(m.first(x))),
        "QLinearConv ConvTranspose Max QLinearConv",
        (4, 4, 8),
        floats={"conv_transpose": STORED},
        first=lambda: nn.Conv1d(4, 8, 3, padding="same"),
        up=lambda: nn.ConvTranspose1d(8, 8, 2, 2),
        last=lambda: nn.Conv1d(8, 4, 1),
    ),
    "pools1d": whole(
        lambda m, x: m.last(F.avg_pool1d(F.max_pool1d(m.first(x), 2), 2)),
        "QLinearConv NhwcMaxPool QLinearConv QLinearConv",
        (4, 4, 8),
        first=lambda: nn.Conv1d(4, 8, 1),
        last=lambda: nn.Conv1d(8, 4, 1),
    ),
    "pools3d": whole(
        lambda m, x: m.last(F.avg_pool3d(F.max_pool3d(m.first(x), 2), 2)),
        "QLinearConv NhwcMaxPool QLinearGlobalAveragePool QLinearConv",
        (4, 4, 4, 4, 4),
        first=lambda: nn.Conv3d(4, 8, 1),
        last=lambda: nn.Conv3d(8, 4, 1),
    ),
}

FEATURE_MAPS = {**ARITHMETIC, **ACTIVATIONS, **POOLS, **LAYERS}
