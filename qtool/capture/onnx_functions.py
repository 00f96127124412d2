"""ONNX operators that are more than one call of torch.

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
from qtool.types import Array

__all__ = ["Array", "Call"]

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


def _same_sides(call: Call, rank: int) -> tuple[list[int], list[int]]:
    if call.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise call.refuse("auto_pad is not supported; write the pads out")
    pads = list(call.get("pads", [0] * 2 * rank))
    return pads[:rank], pads[rank:]


def _padded(x: torch.Tensor, begins: list[int], ends: list[int], fill: float) -> torch.Tensor:
    pairs = zip(reversed(begins), reversed(ends), strict=True)
    return F.pad(x, [w for pair in pairs for w in pair], value=fill)


def conv(call: Call, x: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    rank = weight.dim() - 2
    begins, ends = _same_sides(call, rank)
    if begins != ends:
        x, begins = _padded(x, begins, ends, 0.0), [0] * rank
    strides, dilations = (call.get(k, [1] * rank) for k in ("strides", "dilations"))
    return _CONV[rank](x, weight, bias, strides, begins, dilations, call.get("group", 1))


def conv_transpose(call: Call, x: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    rank = weight.dim() - 2
    begins, ends = _same_sides(call, rank)
    if begins != ends or "output_shape" in call.attributes:
        raise call.refuse("pads that differ at the two ends, or output_shape, are not supported")
    strides, dilations = (call.get(k, [1] * rank) for k in ("strides", "dilations"))
    extra, groups = call.get("output_padding", [0] * rank), call.get("group", 1)
    return _TRANSPOSED[rank](x, weight, bias, strides, begins, extra, groups, dilations)


def gemm(call: Call, a: Any, b: Any, c: Any = None) -> torch.Tensor:
    """As a linear layer where it is one; the loader has turned constant weights to [out, in]."""
    a = a.t() if call.get("transA", 0) else a
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    plain = c is None or (c.dim() == 1 and beta == 1.0)
    if call.get("transB", 0) and alpha == 1.0 and plain:
        return F.linear(a, b, c)
    product = torch.matmul(a, b.t() if call.get("transB", 0) else b)
    product = product if alpha == 1.0 else product * alpha
    return product if c is None else product + (c if beta == 1.0 else c * beta)


def max_pool(call: Call, x: Any) -> torch.Tensor:
    if call.outputs > 1:
        raise call.refuse("the indices of a MaxPool are not supported")
    kernel = call.get("kernel_shape")
    rank = len(kernel)
    begins, ends = _same_sides(call, rank)
    if begins != ends:
        x, begins = _padded(x, begins, ends, float("-inf")), [0] * rank
    strides, dilations = (call.get(k, [1] * rank) for k in ("strides", "dilations"))
    return _MAX_POOL[rank](x, kernel, strides, begins, dilations, bool(call.get("ceil_mode", 0)))


def average_pool(call: Call, x: Any) -> torch.Tensor:
    kernel = call.get("kernel_shape")
    begins, ends = _same_sides(call, len(kernel))
    if begins != ends or any(d != 1 for d in call.get("dilations", [1])):
        raise call.refuse("pads that differ at the two ends, or dilations, are not supported")
    strides, ceil = call.get("strides", [1] * len(kernel)), bool(call.get("ceil_mode", 0))
    counts = bool(call.get("count_include_pad", 0))
    found: torch.Tensor = _AVG_POOL[len(kernel)](x, kernel, strides, begins, ceil, counts)
    return found


def batch_norm(call: Call, x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> torch.Tensor:
    return F.batch_norm(x, mean, var, weight, bias, False, 0.0, call.get("epsilon", 1e-5))


def layer_norm(call: Call, x: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    axis = call.get("axis", -1) % x.dim()
    return F.layer_norm(x, list(x.shape[axis:]), weight, bias, call.get("epsilon", 1e-5))


def softmax(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def apply(call: Call, x: Any) -> torch.Tensor:
        if call.opset >= 13:
            return function(x, call.get("axis", -1))
        axis = call.get("axis", 1) % x.dim()  # before opset 13 over all dimensions from there
        return function(x.flatten(axis), axis).reshape(x.shape)

    return apply


def clip(call: Call, x: Any, low: Array | None = None, high: Array | None = None) -> torch.Tensor:
    low = call.get("min") if low is None else low
    high = call.get("max") if high is None else high
    bounds = [None if b is None else float(b) for b in (low, high)]
    return torch.relu(x) if bounds == [0.0, None] else torch.clamp(x, *bounds)


def reshape(call: Call, x: Any, shape: Array) -> torch.Tensor:
    keep = not call.get("allowzero", 0)
    sizes = [x.shape[i] if keep and _is(s, 0) else s for i, s in enumerate(shape.tolist())]
    found: torch.Tensor = x.reshape(sizes)
    return found


def _is(size: Any, number: int) -> bool:
    return isinstance(size, int) and size == number


def flatten(call: Call, x: Any) -> torch.Tensor:
    axis = call.get("axis", 1)
    if axis == 1:
        return torch.flatten(x, 1)
    lead = reduce(operator.mul, x.shape[:axis], 1)
    found: torch.Tensor = x.reshape([lead, -1])
    return found


def _axes(call: Call, axes: Array | None) -> list[int] | None:
    """Axes come as an input in newer opsets, as an attribute in older ones."""
    return call.get("axes") if axes is None else [int(a) for a in axes.ravel()]


def squeeze(call: Call, x: Any, axes: Array | None = None) -> Any:
    where = _axes(call, axes)
    return x.squeeze() if where is None else x.squeeze(tuple(where))


def unsqueeze(call: Call, x: Any, axes: Array | None = None) -> Any:
    where = _axes(call, axes) or []
    for axis in sorted(a % (x.ndim + len(where)) for a in where):
        x = np.expand_dims(x, axis) if isinstance(x, np.ndarray) else x.unsqueeze(axis)
    return x


def concat(call: Call, *parts: Any) -> torch.Tensor:
    return torch.cat(parts, call.get("axis"))


def split(call: Call, x: Any, sizes: Array | None = None) -> tuple[torch.Tensor, ...]:
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


def cut(call: Call, x: Any, *rest: Any) -> Any:
    return x[_slices(call, x.ndim, rest)]


def gather(call: Call, x: Any, index: Any) -> torch.Tensor:
    axis = call.get("axis", 0)
    if index.ndim == 0 and isinstance(index, np.ndarray):
        return torch.select(x, axis, int(index))
    if axis == 0 and x.dim() == 2:
        return F.embedding(index, x)
    found = torch.index_select(x, axis, index.reshape(-1))
    axis %= x.dim()
    return found.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def expand(call: Call, x: Any, shape: Array) -> torch.Tensor:
    ones = [1] * max(0, len(shape) - x.dim())
    sizes = [*([1] * max(0, x.dim() - len(shape))), *shape.tolist()]
    kept = [old if _is(new, 1) else new for old, new in zip([*ones, *x.shape], sizes, strict=True)]
    found: torch.Tensor = x.expand(kept)
    return found


def pad(call: Call, x: Any, pads: Array | None = None, fill: Any = None, axes: Any = None) -> Any:
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


def resize(call: Call, x: Any, _: Any = None, scales: Any = None, sizes: Any = None) -> Any:
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


def reduction(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def apply(call: Call, x: Any, axes: Array | None = None) -> torch.Tensor:
        where, keep = _axes(call, axes), bool(call.get("keepdims", 1))
        if not where and call.get("noop_with_empty_axes", 0):
            found: torch.Tensor = x
            return found
        return function(x, dim=tuple(where or range(x.dim())), keepdim=keep)

    return apply


def cast(call: Call, x: Any) -> torch.Tensor:
    kind = helper.tensor_dtype_to_np_dtype(call.get("to"))
    found: torch.Tensor = x.to(torch.from_numpy(np.zeros(1, kind)).dtype)
    return found


def divide(call: Call, a: Any, b: Any) -> Any:
    whole = not any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in (a, b))
    return torch.div(a, b, rounding_mode="trunc") if whole and not isinstance(b, float) else a / b


def gelu(call: Call, x: Any) -> torch.Tensor:
    return F.gelu(x, approximate=call.get("approximate", "none"))


def quick_gelu(call: Call, x: Any) -> torch.Tensor:
    alpha = call.get("alpha", 1.702)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def hard_sigmoid(call: Call, x: Any) -> torch.Tensor:
    alpha, beta = call.get("alpha", 0.2), call.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


def prelu(call: Call, x: Any, slope: Any) -> torch.Tensor:
    return F.prelu(x, slope.reshape(-1))


def dcr(call: Call, x: Any) -> torch.Tensor:
    b = call.get("blocksize")
    n, c, h, w = x.shape
    moved = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    found: torch.Tensor = moved.reshape(n, c // b**2, h * b, w * b)
    return found


def filled(call: Call, shape: Array) -> torch.Tensor:
    value = call.get("value")
    array = np.zeros(1, np.float32) if value is None else value
    kind = torch.from_numpy(np.asarray(array).reshape(-1)).dtype
    return torch.full(shape.tolist(), np.asarray(array).reshape(-1)[0].item(), dtype=kind)
