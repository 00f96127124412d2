"""ONNX operators as calls of torch: one row per operator."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from qtool.capture import onnx_functions as f
from qtool.capture.onnx_functions import Array, Call

__all__ = ["OPERATORS", "SIZES", "Row", "plain"]


@dataclass(frozen=True)
class Row:
    """function: (call, inputs...) -> a value, or a tuple of them. known: positions of the inputs
    that have to be known without data: sizes, axes, bounds. fixed: positions of constants that no
    training changes."""

    function: Callable[..., Any]
    known: tuple[int, ...] = ()
    fixed: tuple[int, ...] = ()


def _without_attributes(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(call: Call, *inputs: Any) -> Any:
        return function(*inputs)

    return apply


def plain(function: Callable[..., Any], known: tuple[int, ...] = ()) -> Row:
    """An operator without attributes, whose inputs are torch's arguments."""
    return Row(_without_attributes(function), known)


def _folded(function: Callable[..., Any]) -> Row:
    """An operator of two operands on any number of them."""
    return plain(lambda *inputs: reduce(function, inputs))


def _take(call: Call, x: Array, index: Array) -> Array:
    return np.asarray(np.take(x, index.astype(np.int64), call.get("axis", 0)), object)


OPERATORS: Mapping[str, Row] = {
    "Conv": Row(f.conv),
    "ConvTranspose": Row(f.conv_transpose),
    "Gemm": Row(f.gemm),
    "MatMul": plain(torch.matmul),
    "MaxPool": Row(f.max_pool),
    "AveragePool": Row(f.average_pool),
    "GlobalAveragePool": plain(lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True)),
    "GlobalMaxPool": plain(lambda x: x.amax(tuple(range(2, x.dim())), keepdim=True)),
    "BatchNormalization": Row(f.batch_norm, fixed=(3, 4)),
    "LayerNormalization": Row(f.layer_norm),
    "Dropout": plain(lambda x, *_: x),
    "Identity": plain(lambda x: x),
    "Add": plain(operator.add),
    "Sub": plain(operator.sub),
    "Mul": plain(operator.mul),
    "Div": Row(f.divide),
    "Pow": plain(torch.pow),
    "Sum": _folded(operator.add),
    "Min": _folded(torch.minimum),
    "Max": _folded(torch.maximum),
    "Equal": plain(operator.eq),
    "Greater": plain(operator.gt),
    "GreaterOrEqual": plain(operator.ge),
    "Less": plain(operator.lt),
    "LessOrEqual": plain(operator.le),
    "And": plain(torch.logical_and),
    "Or": plain(torch.logical_or),
    "Not": plain(torch.logical_not),
    "Where": plain(torch.where),
    "Relu": plain(torch.relu),
    "Clip": Row(f.clip, known=(1, 2)),
    "LeakyRelu": Row(lambda call, x: F.leaky_relu(x, call.get("alpha", 0.01))),
    "Elu": Row(lambda call, x: F.elu(x, call.get("alpha", 1.0))),
    "PRelu": Row(f.prelu),
    "Sigmoid": plain(torch.sigmoid),
    "HardSigmoid": Row(f.hard_sigmoid),
    "HardSwish": plain(F.hardswish),
    "Mish": plain(F.mish),
    "Gelu": Row(f.gelu),
    "com.microsoft.Gelu": plain(F.gelu),
    "com.microsoft.FastGelu": plain(lambda x: F.gelu(x, approximate="tanh")),
    "com.microsoft.QuickGelu": Row(f.quick_gelu),
    "Softplus": plain(F.softplus),
    "Tanh": plain(torch.tanh),
    "Erf": plain(torch.erf),
    "Exp": plain(torch.exp),
    "Log": plain(torch.log),
    "Sqrt": plain(torch.sqrt),
    "Abs": plain(torch.abs),
    "Neg": plain(torch.neg),
    "Floor": plain(torch.floor),
    "Ceil": plain(torch.ceil),
    "Round": plain(torch.round),
    "Sin": plain(torch.sin),
    "Cos": plain(torch.cos),
    "Reciprocal": plain(torch.reciprocal),
    "Softmax": Row(f.softmax(torch.softmax)),
    "LogSoftmax": Row(f.softmax(torch.log_softmax)),
    "Cast": Row(f.cast),
    "Reshape": Row(f.reshape, known=(1,)),
    "Flatten": Row(f.flatten),
    "Transpose": Row(lambda call, x: x.permute(call.get("perm", list(range(x.dim()))[::-1]))),
    "Squeeze": Row(f.squeeze, known=(1,)),
    "Unsqueeze": Row(f.unsqueeze, known=(1,)),
    "Concat": Row(f.concat),
    "Split": Row(f.split, known=(1,)),
    "Slice": Row(f.cut, known=(1, 2, 3, 4)),
    "Gather": Row(f.gather),
    "GatherElements": Row(lambda call, x, i: torch.gather(x, call.get("axis", 0), i)),
    "Expand": Row(f.expand, known=(1,)),
    "Tile": plain(lambda x, repeats: x.repeat(repeats.tolist()), known=(1,)),
    "Pad": Row(f.pad, known=(1, 2, 3)),
    "Resize": Row(f.resize, known=(1, 2, 3)),
    "Upsample": Row(f.resize, known=(1,)),
    "DepthToSpace": Row(
        lambda call, x: (
            F.pixel_shuffle(x, call.get("blocksize"))
            if call.get("mode", "DCR") == "CRD"
            else f.dcr(call, x)
        )
    ),
    "Einsum": Row(lambda call, *parts: torch.einsum(call.get("equation"), *parts)),
    "CumSum": plain(lambda x, axis: torch.cumsum(x, int(axis)), known=(1,)),
    "ArgMax": Row(
        lambda call, x: torch.argmax(x, call.get("axis", 0), bool(call.get("keepdims", 1)))
    ),
    "ReduceMean": Row(f.reduction(torch.mean), known=(1,)),
    "ReduceSum": Row(f.reduction(torch.sum), known=(1,)),
    "ReduceMax": Row(f.reduction(torch.amax), known=(1,)),
    "ReduceMin": Row(f.reduction(torch.amin), known=(1,)),
    "ReduceL2": Row(f.reduction(torch.linalg.vector_norm), known=(1,)),
    "Shape": Row(
        lambda call, x: np.array(list(x.shape), object)[call.get("start", 0) : call.get("end")]
    ),
    "ConstantOfShape": Row(f.filled, known=(0,)),
    "Range": plain(lambda *ends: torch.arange(*(v.item() for v in ends)), known=(0, 1, 2)),
}


SIZES: Mapping[str, Callable[..., Any]] = {
    "Identity": _without_attributes(lambda x: x),
    "Cast": _without_attributes(lambda x, *_: x),
    "Gather": _take,
    "Slice": f.cut,
    "Concat": _without_attributes(lambda *parts: np.concatenate([np.atleast_1d(p) for p in parts])),
    "Unsqueeze": f.unsqueeze,
    "Squeeze": _without_attributes(lambda x, *_: np.squeeze(x)),
    "Reshape": _without_attributes(lambda x, shape: x.reshape([int(s) for s in shape])),
    "Add": _without_attributes(lambda a, b: np.asarray(a + b, object)),
    "Sub": _without_attributes(lambda a, b: np.asarray(a - b, object)),
    "Mul": _without_attributes(lambda a, b: np.asarray(a * b, object)),
    "Div": _without_attributes(lambda a, b: np.asarray(a // b, object)),
}
"""Operators on sizes: every input is an array."""
