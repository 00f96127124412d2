"""ONNX operators as calls of torch: one row per operator.

A value is a tensor, or a numpy array where it is known without data: a constant, or sizes (of dtype
object, since a dynamic size is a symbol). Sizes are calculated in numpy, so that torch.export sees
the sizes themselves and no tensors made of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from onnx import helper
from torch.nn import functional as F

from qtool.errors import CaptureError

__all__ = ["OPERATORS", "SIZES", "Call", "Row"]

Array = np.ndarray[Any, Any]
_END = 2**31 - 1  # "to the end" in a Slice
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG_POOL: Mapping[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@dataclass(frozen=True)
class Call:
    """One node: attributes, number of outputs, the file's opset."""

    name: str
    attributes: Mapping[str, Any]
    outputs: int
    opset: int

    def get(self, name: str, default: Any = None) -> Any:
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def refuse(self, why: str) -> CaptureError:
        return CaptureError(f"ONNX node {self.name}: {why}")


@dataclass(frozen=True)
class Row:
    """function: (call, inputs...) -> a value, or a tuple of them. known: the inputs that have to be
    known without data: sizes, axes, bounds; from the number on where that is negative."""

    function: Callable[..., Any]
    known: tuple[int, ...] = ()


def _same_sides(call: Call, rank: int) -> tuple[list[int], list[int]]:
    if call.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise call.refuse("auto_pad is not supported; write the pads out")
    pads = list(call.get("pads", [0] * 2 * rank))
    return pads[:rank], pads[rank:]


def _padded(x: torch.Tensor, begins: list[int], ends: list[int], fill: float) -> torch.Tensor:
    pairs = zip(reversed(begins), reversed(ends), strict=True)
    return F.pad(x, [w for pair in pairs for w in pair], value=fill)


def _conv(call: Call, x: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    rank = weight.dim() - 2
    begins, ends = _same_sides(call, rank)
    if begins != ends:
        x, begins = _padded(x, begins, ends, 0.0), [0] * rank
    strides, dilations = (call.get(k, [1] * rank) for k in ("strides", "dilations"))
    return _CONV[rank](x, weight, bias, strides, begins, dilations, call.get("group", 1))


def _conv_transpose(call: Call, x: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    rank = weight.dim() - 2
    begins, ends = _same_sides(call, rank)
    if begins != ends or "output_shape" in call.attributes:
        raise call.refuse("pads that differ at the two ends, or output_shape, are not supported")
    strides, dilations = (call.get(k, [1] * rank) for k in ("strides", "dilations"))
    extra, groups = call.get("output_padding", [0] * rank), call.get("group", 1)
    return _TRANSPOSED[rank](x, weight, bias, strides, begins, extra, groups, dilations)


def _gemm(call: Call, a: Any, b: Any, c: Any = None) -> torch.Tensor:
    """As a linear layer where it is one; the loader has turned constant weights to [out, in]."""
    a = a.t() if call.get("transA", 0) else a
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    plain = c is None or (c.dim() == 1 and beta == 1.0)
    if call.get("transB", 0) and alpha == 1.0 and plain:
        return F.linear(a, b, c)
    product = torch.matmul(a, b.t() if call.get("transB", 0) else b)
    product = product if alpha == 1.0 else product * alpha
    return product if c is None else product + (c if beta == 1.0 else c * beta)


def _max_pool(call: Call, x: Any) -> torch.Tensor:
    if call.outputs > 1:
        raise call.refuse("the indices of a MaxPool are not supported")
    kernel = call.get("kernel_shape")
    rank = len(kernel)
    begins, ends = _same_sides(call, rank)
    if begins != ends:
        x, begins = _padded(x, begins, ends, float("-inf")), [0] * rank
    strides, dilations = (call.get(k, [1] * rank) for k in ("strides", "dilations"))
    return _MAX_POOL[rank](x, kernel, strides, begins, dilations, bool(call.get("ceil_mode", 0)))


def _average_pool(call: Call, x: Any) -> torch.Tensor:
    kernel = call.get("kernel_shape")
    begins, ends = _same_sides(call, len(kernel))
    if begins != ends or any(d != 1 for d in call.get("dilations", [1])):
        raise call.refuse("pads that differ at the two ends, or dilations, are not supported")
    strides, ceil = call.get("strides", [1] * len(kernel)), bool(call.get("ceil_mode", 0))
    counts = bool(call.get("count_include_pad", 0))
    found: torch.Tensor = _AVG_POOL[len(kernel)](x, kernel, strides, begins, ceil, counts)
    return found


def _batch_norm(call: Call, x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> torch.Tensor:
    return F.batch_norm(x, mean, var, weight, bias, False, 0.0, call.get("epsilon", 1e-5))


def _layer_norm(call: Call, x: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    axis = call.get("axis", -1) % x.dim()
    return F.layer_norm(x, list(x.shape[axis:]), weight, bias, call.get("epsilon", 1e-5))


def _softmax(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def apply(call: Call, x: Any) -> torch.Tensor:
        if call.opset >= 13:
            return function(x, call.get("axis", -1))
        axis = call.get("axis", 1) % x.dim()  # before opset 13 over all dimensions from there
        return function(x.flatten(axis), axis).reshape(x.shape)

    return apply


def _clip(call: Call, x: Any, low: Array | None = None, high: Array | None = None) -> torch.Tensor:
    low = call.get("min") if low is None else low
    high = call.get("max") if high is None else high
    bounds = [None if b is None else float(b) for b in (low, high)]
    return torch.relu(x) if bounds == [0.0, None] else torch.clamp(x, *bounds)


def _reshape(call: Call, x: Any, shape: Array) -> torch.Tensor:
    keep = not call.get("allowzero", 0)
    sizes = [x.shape[i] if keep and _is(s, 0) else s for i, s in enumerate(shape.tolist())]
    found: torch.Tensor = x.reshape(sizes)
    return found


def _is(size: Any, number: int) -> bool:
    return isinstance(size, int) and size == number


def _flatten(call: Call, x: Any) -> torch.Tensor:
    axis = call.get("axis", 1)
    if axis == 1:
        return torch.flatten(x, 1)
    lead = reduce(operator.mul, x.shape[:axis], 1)
    found: torch.Tensor = x.reshape([lead, -1])
    return found


def _axes(call: Call, axes: Array | None) -> list[int] | None:
    """Axes come as an input in newer opsets, as an attribute in older ones."""
    return call.get("axes") if axes is None else [int(a) for a in axes.ravel()]


def _squeeze(call: Call, x: Any, axes: Array | None = None) -> Any:
    where = _axes(call, axes)
    return x.squeeze() if where is None else x.squeeze(tuple(where))


def _unsqueeze(call: Call, x: Any, axes: Array | None = None) -> Any:
    where = _axes(call, axes) or []
    for axis in sorted(a % (x.ndim + len(where)) for a in where):
        x = np.expand_dims(x, axis) if isinstance(x, np.ndarray) else x.unsqueeze(axis)
    return x


def _concat(call: Call, *parts: Any) -> torch.Tensor:
    return torch.cat(parts, call.get("axis"))


def _split(call: Call, x: Any, sizes: Array | None = None) -> tuple[torch.Tensor, ...]:
    axis = call.get("axis", 0)
    given = call.get("split") if sizes is None else sizes.tolist()
    if given is None:
        return torch.split(x, -(-x.shape[axis] // call.outputs), axis)
    return torch.split(x, given, axis)


def _slices(call: Call, rank: int, rest: tuple[Any, ...]) -> tuple[slice, ...]:
    starts, ends, axes, steps = (*rest, None, None, None, None)[:4]
    starts = call.get("starts") if starts is None else starts.tolist()
    ends = call.get("ends") if ends is None else ends.tolist()
    axes = call.get("axes", range(len(starts))) if axes is None else axes.tolist()
    steps = [1] * len(starts) if steps is None else steps.tolist()
    found = [slice(None)] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if isinstance(step, int) and step < 0:
            raise call.refuse("a Slice with negative steps is not supported")
        last = None if isinstance(end, int) and end >= _END else end
        found[axis] = slice(start, last, step)
    return tuple(found)


def _slice(call: Call, x: Any, *rest: Any) -> Any:
    return x[_slices(call, x.ndim, rest)]


def _gather(call: Call, x: Any, index: Any) -> torch.Tensor:
    axis = call.get("axis", 0)
    if index.ndim == 0 and isinstance(index, np.ndarray):
        return torch.select(x, axis, int(index))
    index = torch.from_numpy(index) if isinstance(index, np.ndarray) else index
    if axis == 0 and x.dim() == 2:
        return F.embedding(index, x)
    found = torch.index_select(x, axis, index.reshape(-1))
    axis %= x.dim()
    return found.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def _expand(call: Call, x: Any, shape: Array) -> torch.Tensor:
    ones = [1] * max(0, len(shape) - x.dim())
    sizes = [*([1] * max(0, x.dim() - len(shape))), *shape.tolist()]
    kept = [old if _is(new, 1) else new for old, new in zip([*ones, *x.shape], sizes, strict=True)]
    found: torch.Tensor = x.expand(kept)
    return found


def _pad(call: Call, x: Any, pads: Array | None = None, fill: Any = None, axes: Any = None) -> Any:
    mode, rank = call.get("mode", "constant"), x.dim()
    given = list(call.get("pads")) if pads is None else pads.tolist()
    where = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    begins, ends = [0] * rank, [0] * rank
    for i, axis in enumerate(where):
        begins[axis], ends[axis] = given[i], given[i + len(where)]
    if mode == "constant":
        value = call.get("value", 0.0) if fill is None else float(fill)
        return _padded(x, begins, ends, value)
    first = next((a for a in range(rank) if begins[a] or ends[a]), rank)
    pairs = zip(reversed(begins[first:]), reversed(ends[first:]), strict=True)
    torch_mode = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    return F.pad(x, [w for pair in pairs for w in pair], mode=torch_mode)


def _resize(call: Call, x: Any, _: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    mode, where = call.get("mode", "nearest"), call.get("coordinate_transformation_mode", "")
    rank = x.dim() - 2
    if scales is None and sizes is None:
        scales = _  # opset 10: the second input are the scales
    factor = None if scales is None or not scales.size else [float(s) for s in scales[2:]]
    size = None if sizes is None else sizes.tolist()[2:]
    if mode == "nearest" and (where == "asymmetric" or call.get("nearest_mode") == "floor"):
        return F.interpolate(x, size, factor, "nearest")
    if mode == "linear" and where in ("half_pixel", "pytorch_half_pixel", "align_corners", ""):
        return F.interpolate(x, size, factor, _LINEAR[rank], where == "align_corners")
    raise call.refuse(f"a Resize of mode {mode}, {where} is not supported")


def _reduce(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def apply(call: Call, x: Any, axes: Array | None = None) -> torch.Tensor:
        where, keep = _axes(call, axes), bool(call.get("keepdims", 1))
        if not where and call.get("noop_with_empty_axes", 0):
            found: torch.Tensor = x
            return found
        return function(x, dim=tuple(where or range(x.dim())), keepdim=keep)

    return apply


def _cast(call: Call, x: Any) -> torch.Tensor:
    kind = helper.tensor_dtype_to_np_dtype(call.get("to"))
    found: torch.Tensor = x.to(torch.from_numpy(np.zeros(1, kind)).dtype)
    return found


def _divide(call: Call, a: Any, b: Any) -> Any:
    whole = not any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in (a, b))
    return torch.div(a, b, rounding_mode="trunc") if whole and not isinstance(b, float) else a / b


def _gelu(call: Call, x: Any) -> torch.Tensor:
    return F.gelu(x, approximate=call.get("approximate", "none"))


def _quick_gelu(call: Call, x: Any) -> torch.Tensor:
    alpha = call.get("alpha", 1.702)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def _hard_sigmoid(call: Call, x: Any) -> torch.Tensor:
    alpha, beta = call.get("alpha", 0.2), call.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


def _prelu(call: Call, x: Any, slope: Any) -> torch.Tensor:
    return F.prelu(x, slope.reshape(-1))


def _plain(function: Callable[..., Any]) -> Row:
    """An operator without attributes whose inputs are torch's arguments."""
    return Row(lambda call, *inputs: function(*inputs))


def _folded(function: Callable[..., Any]) -> Row:
    return Row(lambda call, *inputs: reduce(function, inputs))


OPERATORS: Mapping[str, Row] = {
    "Conv": Row(_conv),
    "ConvTranspose": Row(_conv_transpose),
    "Gemm": Row(_gemm),
    "MatMul": _plain(torch.matmul),
    "MaxPool": Row(_max_pool),
    "AveragePool": Row(_average_pool),
    "GlobalAveragePool": Row(lambda call, x: x.mean(tuple(range(2, x.dim())), keepdim=True)),
    "GlobalMaxPool": Row(lambda call, x: x.amax(tuple(range(2, x.dim())), keepdim=True)),
    "BatchNormalization": Row(_batch_norm),
    "LayerNormalization": Row(_layer_norm),
    "Dropout": Row(lambda call, x, *rest: x),
    "Identity": _plain(lambda x: x),
    "Add": _plain(operator.add),
    "Sub": _plain(operator.sub),
    "Mul": _plain(operator.mul),
    "Div": Row(_divide),
    "Pow": _plain(torch.pow),
    "Sum": _folded(operator.add),
    "Min": _folded(torch.minimum),
    "Max": _folded(torch.maximum),
    "Equal": _plain(operator.eq),
    "Greater": _plain(operator.gt),
    "GreaterOrEqual": _plain(operator.ge),
    "Less": _plain(operator.lt),
    "LessOrEqual": _plain(operator.le),
    "And": _plain(torch.logical_and),
    "Or": _plain(torch.logical_or),
    "Not": _plain(torch.logical_not),
    "Where": _plain(torch.where),
    "Relu": _plain(torch.relu),
    "Clip": Row(_clip, known=(1, 2)),
    "LeakyRelu": Row(lambda call, x: F.leaky_relu(x, call.get("alpha", 0.01))),
    "Elu": Row(lambda call, x: F.elu(x, call.get("alpha", 1.0))),
    "PRelu": Row(_prelu),
    "Sigmoid": _plain(torch.sigmoid),
    "HardSigmoid": Row(_hard_sigmoid),
    "HardSwish": _plain(F.hardswish),
    "Mish": _plain(F.mish),
    "Gelu": Row(_gelu),
    "com.microsoft.Gelu": Row(lambda call, x: F.gelu(x)),
    "com.microsoft.FastGelu": Row(lambda call, x: F.gelu(x, approximate="tanh")),
    "com.microsoft.QuickGelu": Row(_quick_gelu),
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
    "Softmax": Row(_softmax(torch.softmax)),
    "LogSoftmax": Row(_softmax(torch.log_softmax)),
    "Cast": Row(_cast),
    "Reshape": Row(_reshape, known=(1,)),
    "Flatten": Row(_flatten),
    "Transpose": Row(
        lambda call, x: x.permute(call.get("perm", list(range(x.dim()))[::-1]))
    ),
    "Squeeze": Row(_squeeze, known=(1,)),
    "Unsqueeze": Row(_unsqueeze, known=(1,)),
    "Concat": Row(_concat),
    "Split": Row(_split, known=(1,)),
    "Slice": Row(_slice, known=(1, 2, 3, 4)),
    "Gather": Row(_gather),
    "GatherElements": Row(lambda call, x, i: torch.gather(x, call.get("axis", 0), i)),
    "Expand": Row(_expand, known=(1,)),
    "Tile": Row(lambda call, x, repeats: x.repeat(repeats.tolist()), known=(1,)),
    "Pad": Row(_pad, known=(1, 2, 3)),
    "Resize": Row(_resize, known=(1, 2, 3)),
    "Upsample": Row(_resize, known=(1,)),
    "DepthToSpace": Row(
        lambda call, x: F.pixel_shuffle(x, call.get("blocksize"))
        if call.get("mode", "DCR") == "CRD"
        else _dcr(call, x)
    ),
    "Einsum": Row(lambda call, *parts: torch.einsum(call.get("equation"), *parts)),
    "CumSum": Row(lambda call, x, axis: torch.cumsum(x, int(axis)), known=(1,)),
    "ArgMax": Row(
        lambda call, x: torch.argmax(x, call.get("axis", 0), bool(call.get("keepdims", 1)))
    ),
    "ReduceMean": Row(_reduce(torch.mean), known=(1,)),
    "ReduceSum": Row(_reduce(torch.sum), known=(1,)),
    "ReduceMax": Row(_reduce(torch.amax), known=(1,)),
    "ReduceMin": Row(_reduce(torch.amin), known=(1,)),
    "ReduceL2": Row(_reduce(torch.linalg.vector_norm), known=(1,)),
    "Shape": Row(
        lambda call, x: np.array(list(x.shape), object)[call.get("start", 0) : call.get("end")]
    ),
    "ConstantOfShape": Row(lambda call, shape: _filled(call, shape), known=(0,)),
    "Range": Row(lambda call, a, b, step: torch.arange(*(v.item() for v in (a, b, step))), (0, 1, 2)),
}


def _dcr(call: Call, x: Any) -> torch.Tensor:
    b = call.get("blocksize")
    n, c, h, w = x.shape
    moved = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    found: torch.Tensor = moved.reshape(n, c // b**2, h * b, w * b)
    return found


def _filled(call: Call, shape: Array) -> torch.Tensor:
    value = call.get("value")
    array = np.zeros(1, np.float32) if value is None else value
    kind = torch.from_numpy(np.asarray(array).reshape(-1)).dtype
    return torch.full(shape.tolist(), np.asarray(array).reshape(-1)[0].item(), dtype=kind)


def _take(call: Call, x: Array, index: Array) -> Array:
    return np.asarray(np.take(x, index.astype(np.int64), call.get("axis", 0)), object)


SIZES: Mapping[str, Callable[..., Any]] = {
    "Identity": lambda call, x: x,
    "Cast": lambda call, x: x,
    "Gather": _take,
    "Slice": _slice,
    "Concat": lambda call, *parts: np.concatenate([np.atleast_1d(p) for p in parts]),
    "Unsqueeze": _unsqueeze,
    "Squeeze": lambda call, x, axes=None: np.squeeze(x),
    "Reshape": lambda call, x, shape: x.reshape([int(s) for s in shape]),
    "Add": lambda call, a, b: np.asarray(a + b, object),
    "Sub": lambda call, a, b: np.asarray(a - b, object),
    "Mul": lambda call, a, b: np.asarray(a * b, object),
    "Div": lambda call, a, b: np.asarray(a // b, object),
}
"""Operators on sizes: every input is an array."""
