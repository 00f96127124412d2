"""ONNX operators as calls of torch: one rule per operator.

A rule lists everything that its function reads of a node: attributes, inputs, outputs. A node with
anything else runs in ONNX Runtime (see runtime_parts.py); so does one whose function raises
`UnsupportedForm` (`NodeCall.require`, `NodeCall.unsupported`).
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

from qtool.backends.onnx import moves
from qtool.backends.onnx.operator_rows import ONNX_OPERATORS
from qtool.core.ops import row_named
from qtool.frontends.onnx import functions, layers
from qtool.frontends.onnx.node_calls import NodeCall

ANY_NUMBER = 2**31


@dataclass(frozen=True)
class OperatorRule:
    """How torch computes an ONNX operator.

    Attributes:
        function: (call, *inputs) -> a value, or a tuple of values.
        attributes: names of the attributes that it reads.
        inputs: largest number of inputs that it reads.
        static_inputs: positions of inputs that have to be known without data: sizes, axes, bounds.
        buffers: positions of constants that training does not change.
        outputs: largest number of outputs that it returns.
    """

    function: Callable[..., Any]
    attributes: frozenset[str] = frozenset()
    inputs: int = 1
    static_inputs: tuple[int, ...] = ()
    buffers: tuple[int, ...] = ()
    outputs: int = 1


def _rule(
    function: Callable[..., Any], attributes: str = "", inputs: int = 1, **rest: Any
) -> OperatorRule:
    return OperatorRule(function, frozenset(attributes.split()), inputs, **rest)


def _positional(
    function: Callable[..., Any], inputs: int = 1, static_inputs: tuple[int, ...] = ()
) -> OperatorRule:
    """Return the rule of an operator without attributes, whose inputs are torch's arguments."""

    def apply(call: NodeCall, *inputs: Any) -> Any:
        return function(*inputs)

    return OperatorRule(apply, inputs=inputs, static_inputs=static_inputs)


def _reduced_over_inputs(function: Callable[..., Any]) -> OperatorRule:
    """Return the rule that applies a function of two operands to any number of them."""
    return _positional(lambda *inputs: reduce(function, inputs), ANY_NUMBER)


def _activation(function: Callable[..., Any], **attributes: float) -> OperatorRule:
    """Return the rule of an activation with attributes as torch's arguments, in this order."""

    def apply(call: NodeCall, x: torch.Tensor) -> Any:
        return function(x, *(call.get(name, value) for name, value in attributes.items()))

    return OperatorRule(apply, frozenset(attributes))


def _reduce(function: Callable[..., Any], noop: bool = True) -> OperatorRule:
    names = "axes keepdims noop_with_empty_axes"
    return _rule(moves.reduction(function, noop), names, 2, static_inputs=(1,))


def _global(name: str) -> OperatorRule:
    return _positional(lambda x: getattr(x, name)(tuple(range(2, x.dim())), keepdim=True))


def _recurrent(kind: str) -> OperatorRule:
    outputs = 3 if kind == "lstm" else 2
    return _rule(functions.recurrent(kind), functions.ATTRIBUTES, functions.INPUTS, outputs=outputs)


_WINDOWS = "auto_pad dilations kernel_shape pads strides"

OPERATORS: Mapping[str, OperatorRule] = {
    "Conv": _rule(layers.conv, f"{_WINDOWS} group", 3),
    "ConvTranspose": _rule(
        layers.conv_transpose, f"{_WINDOWS} group output_padding output_shape", 3
    ),
    "Gemm": _rule(layers.gemm, "alpha beta transA transB", 3),
    "MatMul": _positional(torch.matmul, 2),
    "qtool.Linear": _rule(layers.linear, "alpha beta transA transB", 3),
    "LSTM": _recurrent("lstm"),
    "GRU": _recurrent("gru"),
    "RNN": _recurrent("rnn"),
    "MaxPool": _rule(layers.max_pool, f"{_WINDOWS} ceil_mode storage_order"),
    "AveragePool": _rule(layers.average_pool, f"{_WINDOWS} ceil_mode count_include_pad"),
    "GlobalAveragePool": _global("mean"),
    "GlobalMaxPool": _global("amax"),
    "BatchNormalization": _rule(
        layers.batch_norm,
        "consumed_inputs epsilon is_test momentum training_mode spatial",
        5,
        buffers=(3, 4),
    ),
    "LayerNormalization": _rule(layers.layer_norm, "axis epsilon stash_type", 3),
    "InstanceNormalization": _rule(layers.instance_norm, "epsilon", 3),
    "GroupNormalization": _rule(layers.group_norm, "epsilon num_groups stash_type", 3),
    "Dropout": _rule(layers.dropout, "consumed_inputs is_test ratio seed", 2),
    "Identity": _rule(moves.identity),
    "Add": _positional(operator.add, 2),
    "Sub": _positional(operator.sub, 2),
    "Mul": _positional(operator.mul, 2),
    "Div": _rule(layers.divide, inputs=2),
    "Pow": _rule(layers.power, inputs=2),
    "Sum": _reduced_over_inputs(operator.add),
    "Min": _reduced_over_inputs(torch.minimum),
    "Max": _reduced_over_inputs(torch.maximum),
    "Equal": _positional(operator.eq, 2),
    "Greater": _positional(operator.gt, 2),
    "GreaterOrEqual": _positional(operator.ge, 2),
    "Less": _positional(operator.lt, 2),
    "LessOrEqual": _positional(operator.le, 2),
    "And": _positional(torch.logical_and, 2),
    "Or": _positional(torch.logical_or, 2),
    "Not": _positional(torch.logical_not),
    "Where": _positional(torch.where, 3),
    **{
        kind: _activation(row_named(row.key).targets[0], **row.attributes)
        for kind, row in ONNX_OPERATORS.items()
        if row.unary
    },
    "Clip": _rule(functions.clip, "min max", 3, static_inputs=(1, 2)),
    "PRelu": _rule(functions.prelu, inputs=2),
    "HardSigmoid": _rule(functions.hard_sigmoid, "alpha beta"),
    "Mish": _positional(F.mish),
    "Swish": _rule(functions.swish, "alpha"),
    "Gelu": _rule(functions.gelu, "approximate"),
    "com.microsoft.Gelu": _positional(F.gelu),
    "com.microsoft.FastGelu": _positional(lambda x: F.gelu(x, approximate="tanh")),
    "com.microsoft.QuickGelu": _rule(functions.quick_gelu, "alpha"),
    "Softplus": _positional(F.softplus),
    "Erf": _positional(torch.erf),
    "Exp": _positional(torch.exp),
    "Log": _positional(torch.log),
    "Sqrt": _positional(torch.sqrt),
    "Abs": _positional(torch.abs),
    "Neg": _positional(torch.neg),
    "Floor": _positional(torch.floor),
    "Ceil": _positional(torch.ceil),
    "Round": _positional(torch.round),
    "Sin": _positional(torch.sin),
    "Cos": _positional(torch.cos),
    "Reciprocal": _positional(torch.reciprocal),
    "Softmax": _rule(functions.softmax(torch.softmax), "axis"),
    "LogSoftmax": _rule(functions.softmax(torch.log_softmax), "axis"),
    "Cast": _rule(functions.cast, "to"),
    "Reshape": _rule(moves.reshape, "allowzero", 2, static_inputs=(1,)),
    "Flatten": _rule(moves.flatten, "axis"),
    "Transpose": _rule(moves.transpose, "perm"),
    "Squeeze": _rule(moves.squeeze, "axes", 2, static_inputs=(1,)),
    "Unsqueeze": _rule(moves.unsqueeze, "axes", 2, static_inputs=(1,)),
    "Concat": _rule(functions.concat, "axis", ANY_NUMBER),
    "Split": _rule(
        functions.split, "axis split num_outputs", 2, static_inputs=(1,), outputs=ANY_NUMBER
    ),
    "Slice": _rule(moves.slice_elements, "axes ends starts", 5, static_inputs=(1, 2, 3, 4)),
    "Gather": _rule(moves.gather, "axis", 2),
    "GatherElements": _rule(functions.gather_elements, "axis", 2),
    "Expand": _rule(moves.expand, "", 2, static_inputs=(1,)),
    "Tile": _rule(moves.tile, "", 2, static_inputs=(1,)),
    "Pad": _rule(layers.pad, "mode pads value", 4, static_inputs=(1, 2, 3)),
    "Resize": _rule(
        layers.resize,
        "antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside"
        " extrapolation_value keep_aspect_ratio_policy mode nearest_mode",
        4,
        static_inputs=(1, 2, 3),
    ),
    "Upsample": _rule(layers.upsample, "mode scales", 2, static_inputs=(1,)),
    "DepthToSpace": _rule(moves.depth_to_space, "blocksize mode"),
    "SpaceToDepth": _rule(functions.space_to_depth, "blocksize"),
    "Einsum": _rule(
        lambda call, *parts: torch.einsum(call.get("equation"), *parts), "equation", ANY_NUMBER
    ),
    "CumSum": _rule(layers.cumulative_sum, "exclusive reverse", 2, static_inputs=(1,)),
    "EyeLike": _rule(functions.eye_like, "dtype k"),
    "ArgMax": _rule(layers.arg_max, "axis keepdims select_last_index"),
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMin": _reduce(torch.amin),
    "ReduceL2": _reduce(torch.linalg.vector_norm, noop=False),
    "Shape": _rule(
        lambda call, x: np.array(list(x.shape), object)[call.get("start", 0) : call.get("end")],
        "end start",
    ),
    "ConstantOfShape": _rule(functions.constant_of_shape, "value", static_inputs=(0,)),
    "Range": _positional(
        lambda *ends: torch.arange(*(v.item() for v in ends)), 3, static_inputs=(0, 1, 2)
    ),
}
