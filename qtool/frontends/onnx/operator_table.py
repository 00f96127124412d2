"""ONNX operators as calls of torch: one row per operator.

A row says all that its function reads of a node: attributes, inputs, outputs. A node with anything
else is not read but kept as it is (see parts.py); so is one of which the function finds a value
that it does not know (`Call.only`, `Call.refuse`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from qtool.frontends.onnx import layers as f
from qtool.frontends.onnx import moves as m
from qtool.frontends.onnx.node_calls import Call

MANY = 2**31


@dataclass(frozen=True)
class Row:
    """How an operator is read.

    Attributes:
        function: (call, inputs...) -> a value, or a tuple of them.
        attributes: the names of those that it knows.
        inputs, outputs: how many of them it knows.
        known: positions of the inputs that have to be known without data: sizes, axes, bounds.
        fixed: positions of constants that no training changes.
    """

    function: Callable[..., Any]
    attributes: frozenset[str] = frozenset()
    inputs: int = 1
    known: tuple[int, ...] = ()
    fixed: tuple[int, ...] = ()
    outputs: int = 1


def _row(function: Callable[..., Any], attributes: str = "", inputs: int = 1, **rest: Any) -> Row:
    return Row(function, frozenset(attributes.split()), inputs, **rest)


def _plain(function: Callable[..., Any], inputs: int = 1, known: tuple[int, ...] = ()) -> Row:
    """An operator without attributes, whose inputs are torch's arguments."""

    def apply(call: Call, *given: Any) -> Any:
        return function(*given)

    return Row(apply, inputs=inputs, known=known)


def _folded(function: Callable[..., Any]) -> Row:
    """An operator of two operands on any number of them."""
    return _plain(lambda *inputs: reduce(function, inputs), MANY)


def _with(function: Callable[..., Any], **attributes: float) -> Row:
    """An activation whose attributes are torch's arguments, in order, with these defaults."""

    def apply(call: Call, x: Any) -> Any:
        return function(x, *(call.get(name, value) for name, value in attributes.items()))

    return Row(apply, frozenset(attributes))


def _reduce(function: Callable[..., Any], noop: bool = True) -> Row:
    names = "axes keepdims noop_with_empty_axes"
    return _row(f.reduction(function, noop), names, 2, known=(1,))


def _global(name: str) -> Row:
    return _plain(lambda x: getattr(x, name)(tuple(range(2, x.dim())), keepdim=True))


def _recurrent(kind: str, extra: str = "", inputs: int = 6) -> Row:
    names = f"activations direction hidden_size layout {extra}"
    return _row(f.recurrent(kind), names, inputs, outputs=3 if kind == "lstm" else 2)


_WINDOWS = "auto_pad dilations kernel_shape pads strides"

OPERATORS: Mapping[str, Row] = {
    "Conv": _row(f.conv, f"{_WINDOWS} group", 3),
    "ConvTranspose": _row(f.conv_transpose, f"{_WINDOWS} group output_padding", 3),
    "Gemm": _row(f.gemm, "alpha beta transA transB", 3),
    "MatMul": _plain(torch.matmul, 2),
    "qtool.Linear": _row(f.linear, "alpha beta transA transB", 3),
    "LSTM": _recurrent("lstm", "input_forget", 8),
    "GRU": _recurrent("gru", "linear_before_reset"),
    "RNN": _recurrent("rnn"),
    "MaxPool": _row(f.max_pool, f"{_WINDOWS} ceil_mode storage_order"),
    "AveragePool": _row(f.average_pool, f"{_WINDOWS} ceil_mode count_include_pad"),
    "GlobalAveragePool": _global("mean"),
    "GlobalMaxPool": _global("amax"),
    "BatchNormalization": _row(
        f.batch_norm,
        "consumed_inputs epsilon is_test momentum training_mode spatial",
        5,
        fixed=(3, 4),
    ),
    "LayerNormalization": _row(f.layer_norm, "axis epsilon stash_type", 3),
    "InstanceNormalization": _row(f.instance_norm, "epsilon", 3),
    "GroupNormalization": _row(f.group_norm, "epsilon num_groups stash_type", 3),
    "Dropout": _row(f.dropout, "consumed_inputs is_test ratio seed", 2),
    "Identity": _plain(lambda x: x),
    "Add": _plain(operator.add, 2),
    "Sub": _plain(operator.sub, 2),
    "Mul": _plain(operator.mul, 2),
    "Div": _row(f.divide, inputs=2),
    "Pow": _row(f.power, inputs=2),
    "Sum": _folded(operator.add),
    "Min": _folded(torch.minimum),
    "Max": _folded(torch.maximum),
    "Equal": _plain(operator.eq, 2),
    "Greater": _plain(operator.gt, 2),
    "GreaterOrEqual": _plain(operator.ge, 2),
    "Less": _plain(operator.lt, 2),
    "LessOrEqual": _plain(operator.le, 2),
    "And": _plain(torch.logical_and, 2),
    "Or": _plain(torch.logical_or, 2),
    "Not": _plain(torch.logical_not),
    "Where": _plain(torch.where, 3),
    "Relu": _plain(torch.relu),
    "Clip": _row(f.clip, "min max", 3, known=(1, 2)),
    "LeakyRelu": _with(F.leaky_relu, alpha=0.01),
    "Elu": _with(F.elu, alpha=1.0),
    "PRelu": _row(f.prelu, inputs=2),
    "Sigmoid": _plain(torch.sigmoid),
    "HardSigmoid": _row(f.hard_sigmoid, "alpha beta"),
    "HardSwish": _plain(F.hardswish),
    "Mish": _plain(F.mish),
    "Swish": _row(f.swish, "alpha"),
    "Gelu": _row(f.gelu, "approximate"),
    "com.microsoft.Gelu": _plain(F.gelu),
    "com.microsoft.FastGelu": _plain(lambda x: F.gelu(x, approximate="tanh")),
    "com.microsoft.QuickGelu": _row(f.quick_gelu, "alpha"),
    "Softplus": _plain(F.softplus),
    "Tanh": _plain(torch.tanh),
    "Erf": _plain(torch.erf),
    "Exp": _plain(torch.exp),
    "Log": _plain(torch.log),
    "Sqrt": _plain(torch.sqrt),
    "Abs": _plain(torch.abs),
    "Neg": _plain(torch.neg),
    "Floor": _plain(torch.floor),
    "Ceil": _plain(torch.ceil),
    "Round": _plain(torch.round),
    "Sin": _plain(torch.sin),
    "Cos": _plain(torch.cos),
    "Reciprocal": _plain(torch.reciprocal),
    "Softmax": _row(f.softmax(torch.softmax), "axis"),
    "LogSoftmax": _row(f.softmax(torch.log_softmax), "axis"),
    "Cast": _row(m.cast, "to"),
    "Reshape": _row(m.reshape, "allowzero", 2, known=(1,)),
    "Flatten": _row(m.flatten, "axis"),
    "Transpose": _row(
        lambda call, x: x.permute(call.get("perm", list(range(x.dim()))[::-1])), "perm"
    ),
    "Squeeze": _row(m.squeeze, "axes", 2, known=(1,)),
    "Unsqueeze": _row(m.unsqueeze, "axes", 2, known=(1,)),
    "Concat": _row(m.concat, "axis", MANY),
    "Split": _row(m.split, "axis split num_outputs", 2, known=(1,), outputs=MANY),
    "Slice": _row(m.cut, "axes ends starts", 5, known=(1, 2, 3, 4)),
    "Gather": _row(m.gather, "axis", 2),
    "GatherElements": _row(m.gather_elements, "axis", 2),
    "Expand": _row(m.expand, "", 2, known=(1,)),
    "Tile": _plain(lambda x, repeats: x.repeat(repeats.tolist()), 2, known=(1,)),
    "Pad": _row(m.pad, "mode pads value", 4, known=(1, 2, 3)),
    "Resize": _row(
        m.resize,
        "antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside"
        " extrapolation_value keep_aspect_ratio_policy mode nearest_mode",
        4,
        known=(1, 2, 3),
    ),
    "Upsample": _row(m.upsample, "mode scales", 2, known=(1,)),
    "DepthToSpace": _row(m.depth_to_space, "blocksize mode"),
    "SpaceToDepth": _row(m.space_to_depth, "blocksize"),
    "Einsum": _row(
        lambda call, *parts: torch.einsum(call.get("equation"), *parts), "equation", MANY
    ),
    "CumSum": _row(f.cumulative_sum, "exclusive reverse", 2, known=(1,)),
    "EyeLike": _row(m.eye_like, "dtype k"),
    "ArgMax": _row(f.arg_max, "axis keepdims select_last_index"),
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMin": _reduce(torch.amin),
    "ReduceL2": _reduce(torch.linalg.vector_norm, noop=False),
    "Shape": _row(
        lambda call, x: np.array(list(x.shape), object)[call.get("start", 0) : call.get("end")],
        "end start",
    ),
    "ConstantOfShape": _row(m.filled, "value", known=(0,)),
    "Range": _plain(lambda *ends: torch.arange(*(v.item() for v in ends)), 3, known=(0, 1, 2)),
}
