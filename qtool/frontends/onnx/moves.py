"""ONNX operators that rearrange elements or compute shapes, as calls of torch."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from qtool.backends.onnx.subgraph import TORCH_TYPES
from qtool.frontends.onnx.node_calls import Array, NodeCall, axes_of

_END = 2**31 - 1  # "to the end" in a Slice
_BACK_TO_FIRST = (2**31 - 1, 2**63 - 1)  # the same in ONNX Runtime if the step is negative


def reshape(call: NodeCall, x: torch.Tensor, shape: Array) -> torch.Tensor:
    keep = not call.get("allowzero", 0)
    sizes = [x.shape[i] if keep and _is(s, 0) else s for i, s in enumerate(shape.tolist())]
    return x.reshape(sizes)


def _is(size: Any, number: int) -> bool:
    """Compare a size with a number; a symbol is not evaluated, which would specialize it."""
    return isinstance(size, int) and size == number


def flatten(call: NodeCall, x: torch.Tensor) -> torch.Tensor:
    axis = call.get("axis", 1)
    if axis == 1:
        return torch.flatten(x, 1)
    rows = reduce(operator.mul, x.shape[:axis], 1)
    return x.reshape([rows, -1])


def squeeze(call: NodeCall, x: Any, axes: Array | None = None) -> Any:
    where = axes_of(call, axes)  # ONNX Runtime removes all dimensions of 1 for an empty list, too
    return x.squeeze(tuple(where)) if where else x.squeeze()


def unsqueeze(call: NodeCall, x: Any, axes: Array | None = None) -> Any:
    where = axes_of(call, axes) or []
    for axis in sorted(a % (x.ndim + len(where)) for a in where):
        x = np.expand_dims(x, axis) if isinstance(x, np.ndarray) else x.unsqueeze(axis)
    return x


def concat(call: NodeCall, *parts: Any) -> torch.Tensor:
    return torch.cat(parts, call.get("axis"))


def split(call: NodeCall, x: Any, sizes: Array | None = None) -> tuple[torch.Tensor, ...]:
    axis = call.get("axis", 0)
    lengths = call.get("split") if sizes is None else sizes.tolist()
    if lengths is None and not isinstance(x.shape[axis], int):
        return _split_evenly(x, axis, call.outputs)
    parts = torch.split(x, -(-x.shape[axis] // call.outputs) if lengths is None else lengths, axis)
    if len(parts) != call.outputs:
        raise call.unsupported("fewer parts than outputs")
    return parts


def _split_evenly(x: torch.Tensor, axis: int, parts: int) -> tuple[torch.Tensor, ...]:
    """Split a dynamic dimension into equal parts.

    If it is too small for that, the last parts are empty; torch.split would return fewer.
    """
    length, front = -(-x.shape[axis] // parts), (slice(None),) * (axis % x.ndim)
    slices = [slice(i * length, (i + 1) * length) for i in range(parts - 1)]
    return tuple(x[(*front, part)] for part in (*slices, slice((parts - 1) * length, None)))


def _slices(call: NodeCall, rank: int, rest: tuple[Any, ...]) -> tuple[slice, ...]:
    starts, ends, axes, steps = (*rest, None, None, None, None)[:4]
    starts = call.get("starts") if starts is None else starts.tolist()
    ends = call.get("ends") if ends is None else ends.tolist()
    axes = call.get("axes", range(len(starts))) if axes is None else axes.tolist()
    steps = [1] * len(starts) if steps is None else steps.tolist()
    slices = [slice(None)] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        forwards = not isinstance(step, int) or step > 0
        open_end = isinstance(end, int) and (end >= _END if forwards else end in _BACK_TO_FIRST)
        slices[axis] = slice(start, None if open_end else end, step)
    return tuple(slices)


def slice_elements(call: NodeCall, x: Any, *rest: Any) -> Any:
    where = tuple(map(_clamp_start, _slices(call, x.ndim, rest), x.shape))
    if isinstance(x, torch.Tensor):
        back = [d for d, s in enumerate(where) if isinstance(s.step, int) and s.step < 0]
        where = tuple(
            _reversed_slice(call, s, x.shape[d]) if d in back else s for d, s in enumerate(where)
        )
        x = x.flip(back) if back else x
    if isinstance(x, np.ndarray) and any(_is_dynamic(b) for s in where for b in (s.start, s.stop)):
        x = torch.as_tensor(x)  # numpy would convert the symbol to a number
    return x[where]


def _clamp_start(part: slice, size: Any) -> slice:
    """Clamp the start of a negative step to the first element; Python returns nothing there."""
    start, step = part.start, part.step
    if not all(isinstance(n, int) for n in (start, step, size)):
        return part
    return slice(0, part.stop, step) if step < 0 < size and start < -size else part


def _reversed_slice(call: NodeCall, backwards: slice, size: Any) -> slice:
    """Return the slice with a positive step that selects the same elements of the flipped axis."""
    start, stop, step = backwards.start, backwards.stop, backwards.step
    if isinstance(size, int) and not any(map(_is_dynamic, (start, stop))):
        first, end, _ = slice(start, stop, step).indices(size)
        return slice(size - 1 - first, max(size - 1 - end, 0), -step)
    from_end = isinstance(start, int) and (start == -1 or start >= _END)
    if not from_end or not (stop is None or (isinstance(stop, int) and stop <= -_END)):
        raise call.unsupported("negative steps over a part of a dynamic size")
    return slice(None, None, -step)


def _is_dynamic(bound: Any) -> bool:
    return isinstance(bound, torch.SymInt)


def gather(call: NodeCall, x: torch.Tensor, index: Any) -> torch.Tensor:
    axis = call.get("axis", 0)
    if index.ndim == 0 and isinstance(index, np.ndarray):
        return torch.select(x, axis, int(index))
    index = _non_negative_index(call, x, index, axis)
    if axis == 0 and x.dim() == 2:
        return F.embedding(index, x)
    rows = torch.index_select(x, axis, index.reshape(-1))
    axis %= x.dim()
    return rows.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def gather_elements(call: NodeCall, x: torch.Tensor, index: Any) -> torch.Tensor:
    axis = call.get("axis", 0)
    return torch.gather(x, axis, _non_negative_index(call, x, index, axis).long())


def _non_negative_index(call: NodeCall, x: Any, index: Any, axis: int) -> Any:
    """Add the size to negative indices, which torch's operators do not support."""
    constant = call.constants.get(1)
    if constant is None or not (constant < 0).any():
        return index
    index = torch.as_tensor(index).long()  # the type of the size that is added
    return torch.where(index < 0, index + x.shape[axis], index)


def expand(call: NodeCall, x: torch.Tensor, shape: Array) -> torch.Tensor:
    ones = [1] * max(0, len(shape) - x.dim())
    sizes = [*([1] * max(0, x.dim() - len(shape))), *shape.tolist()]
    pairs = zip([*ones, *x.shape], sizes, strict=True)
    return x.expand([old if _is(new, 1) else new for old, new in pairs])


def cast(call: NodeCall, x: torch.Tensor) -> torch.Tensor:
    return x.to(torch_type(call, call.get("to")))


def torch_type(call: NodeCall, kind: int) -> torch.dtype:
    if kind not in TORCH_TYPES:
        raise call.unsupported("a type without torch tensors")
    return TORCH_TYPES[kind]


def depth_to_space(call: NodeCall, x: torch.Tensor) -> torch.Tensor:
    b = call.get("blocksize")
    if call.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, b)
    n, c, h, w = x.shape
    blocks = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // b**2, h * b, w * b)


def space_to_depth(call: NodeCall, x: torch.Tensor) -> torch.Tensor:
    b = call.get("blocksize")
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * b**2, h // b, w // b)


def constant_of_shape(call: NodeCall, shape: Array) -> torch.Tensor:
    value = call.get("value")
    array = np.zeros(1, np.float32) if value is None else np.array(value)  # a writable copy
    kind = torch.from_numpy(array.reshape(-1)).dtype
    return torch.full(shape.tolist(), array.reshape(-1)[0].item(), dtype=kind)


def eye_like(call: NodeCall, x: torch.Tensor) -> torch.Tensor:
    """Return an identity matrix of the input's sizes: a constant, if they are fixed."""
    call.require("k", 0)
    kind = call.get("dtype")
    if x.dim() != 2 or not all(isinstance(s, int) for s in x.shape):
        raise call.unsupported("a dynamic size")
    return torch.eye(*x.shape, dtype=x.dtype if kind is None else torch_type(call, kind))
