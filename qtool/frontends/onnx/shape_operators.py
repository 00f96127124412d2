"""Operators on sizes, computed in numpy when the graph is captured.

A size may be a symbol, so arrays have dtype object; a size cast to float is a float32 number, as in
ONNX Runtime. Other operators are computed on tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper

from qtool.backends.onnx import moves
from qtool.backends.onnx.subgraph import TORCH_TYPES
from qtool.core.types import Array
from qtool.frontends.onnx.node_calls import NodeCall, UnsupportedForm

ShapeOperator = Callable[..., Array]  # of the call and its inputs

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def evaluate_shapes(op: str, call: NodeCall, arrays: list[Array | None]) -> Array | None:
    """Return the result on arrays of which one has sizes; None if tensors are needed."""
    if op not in SHAPE_OPERATORS or not any(a is not None and a.dtype == object for a in arrays):
        return None
    try:
        result: Array = SHAPE_OPERATORS[op](call, *arrays)
    except UnsupportedForm:
        return None
    return result


def cast_types(protos: Iterable[onnx.NodeProto]) -> dict[str, torch.dtype]:
    """Return value -> integer type for casts, and for what is computed from their results.

    The arrays do not have that type; sizes are int64 unless the file casts them.
    """
    types: dict[str, torch.dtype] = {}
    for proto in protos:
        if proto.op_type == "Cast":
            kind = TORCH_TYPES.get(next(a.i for a in proto.attribute if a.name == "to"))
        else:
            values = proto.input[:1] if proto.op_type == "Gather" else proto.input
            kind = next((types[n] for n in values if n in types), None)
        if proto.op_type in SHAPE_OPERATORS and kind in _INTEGERS:
            types[proto.output[0]] = kind
    return types


def sizes_as_tensor(value: Array, integer: torch.dtype) -> torch.Tensor:
    """Return sizes as in ONNX Runtime: `integer`, or float32 if the file casts them."""
    flat = value.ravel().tolist()
    if all(isinstance(v, int) for v in flat):
        return torch.tensor(flat, dtype=integer).reshape(value.shape)
    symbolic = any(isinstance(v, torch.SymInt) for v in flat)
    dtype = integer if symbolic else torch.float32
    parts = [torch.scalar_tensor(v, dtype=dtype) for v in flat]
    return torch.stack(parts).reshape(value.shape) if parts else torch.zeros(0, dtype=dtype)


def _positional(function: Callable[..., Array]) -> ShapeOperator:
    def apply(call: NodeCall, *inputs: Array) -> Array:
        return function(*inputs)

    return apply


def each_element(function: Callable[..., Any]) -> ShapeOperator:
    """Return an operator that applies a function element by element."""

    def apply(call: NodeCall, *inputs: Array) -> Array:
        arrays = np.broadcast_arrays(*(np.asarray(a, object) for a in inputs))
        result = np.empty(arrays[0].shape, object)
        for index in np.ndindex(result.shape):
            result[index] = function(*(_number(a[index]) for a in arrays))
        return result

    return apply


def _number(value: Any) -> Any:
    """Return numpy integers as Python integers, which do not overflow; floats stay float32."""
    return int(value) if isinstance(value, np.integer) else value


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, np.floating) or isinstance(b, np.floating):
        return a / b
    if any(isinstance(v, torch.SymFloat | float) for v in (a, b)):
        raise UnsupportedForm("a division of symbols")
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # towards zero
    return a // b  # sizes are not negative


def _cast(call: NodeCall, x: Array) -> Array:
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(call.get("to")))
    symbolic = any(isinstance(v, torch.SymInt) for v in x.ravel())
    if kind.kind not in "iu" and (kind != np.float32 or symbolic):
        raise UnsupportedForm("a symbol as a float")
    converted: Array = each_element(_whole if kind.kind in "iu" else np.float32)(call, x)
    return converted


def _whole(value: Any) -> Any:
    return value if isinstance(value, torch.SymInt) else int(value)


def _round_float(function: Callable[[Any], float]) -> ShapeOperator:
    return each_element(lambda v: np.float32(function(v)) if isinstance(v, np.floating) else v)


def _take(call: NodeCall, x: Array, index: Array) -> Array:
    return np.asarray(np.take(x, index.astype(np.int64), call.get("axis", 0)), object)


def _full(call: NodeCall, shape: Array) -> Array:
    fill = np.asarray(call.get("value", np.zeros(1, np.float32)))
    if fill.dtype != np.int64 or any(isinstance(s, torch.SymInt) for s in shape):
        raise UnsupportedForm("no sizes")
    return np.full([int(s) for s in shape], fill.item(), object)


def _product(call: NodeCall, x: Array, *axes: Array) -> Array:
    """Return the product of a list of sizes."""
    if x.ndim != 1:
        raise UnsupportedForm("no list of sizes")
    product = np.empty([1] if call.get("keepdims", 1) else [], object)
    product[...] = math.prod(map(_number, x))
    return product


def _extreme(
    symbolic: Callable[[Any, Any], Any], plain: Callable[[Any, Any], Any]
) -> ShapeOperator:
    """Return an operator on any number of inputs, which compares symbols without evaluating
    them."""

    def choose(a: Any, b: Any) -> Any:
        symbols = isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt)
        return symbolic(a, b) if symbols else plain(a, b)

    return each_element(lambda *values: reduce(choose, values))


def _equal(call: NodeCall, a: Array, b: Array) -> Array:
    return np.asarray(each_element(_are_equal)(call, a, b), bool)


def _are_equal(a: Any, b: Any) -> bool:
    """Compare without evaluating a symbol, which would specialize it."""
    symbols = [v for v in (a, b) if isinstance(v, torch.SymInt)]
    if not symbols:
        return bool(a == b)
    if any(not isinstance(v, torch.SymInt) and v < 0 for v in (a, b)):
        return False  # no size is negative
    if len(symbols) == 2 and a.node.expr == b.node.expr:
        return True
    raise UnsupportedForm("a comparison of symbols")


SHAPE_OPERATORS: Mapping[str, ShapeOperator] = {
    "Identity": _positional(lambda x: x),
    "Cast": _cast,
    "Gather": _take,
    "Slice": moves.slice_elements,
    "Concat": _positional(lambda *parts: np.concatenate([np.atleast_1d(p) for p in parts])),
    "Unsqueeze": moves.unsqueeze,
    "Squeeze": _positional(lambda x, *_: np.squeeze(x)),
    "Reshape": _positional(lambda x, shape: x.reshape([int(s) for s in shape])),
    "Add": each_element(lambda a, b: a + b),
    "Sub": each_element(lambda a, b: a - b),
    "Mul": each_element(lambda a, b: a * b),
    "Div": each_element(_divide),
    "Floor": _round_float(math.floor),
    "Ceil": _round_float(math.ceil),
    "Sqrt": _round_float(np.sqrt),
    "Neg": each_element(lambda v: -v),
    "Max": _extreme(torch.sym_max, max),
    "Min": _extreme(torch.sym_min, min),
    "ReduceProd": _product,
    "ConstantOfShape": _full,
    "Equal": _equal,
    "Where": each_element(lambda chosen, a, b: a if chosen else b),
}
"""Operator -> function of (call, arrays); arrays are sizes or constants."""
