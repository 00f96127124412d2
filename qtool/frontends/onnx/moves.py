"""ONNX operators that move elements or make sizes, as calls of torch."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from qtool.core.graph.onnx_subgraph import TORCH_TYPES
from qtool.frontends.onnx.layers import pad_sides
from qtool.frontends.onnx.node_calls import Array, NodeCall, axes_of

_END = 2**31 - 1  # "to the end" in a Slice
_BACK_TO_FIRST = (2**31 - 1, 2**63 - 1)  # the same to the runtime where it goes backwards
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def reshape(call: NodeCall, x: Any, shape: Array) -> torch.Tensor:
    keep = not call.get("allowzero", 0)
    sizes = [x.shape[i] if keep and _is(s, 0) else s for i, s in enumerate(shape.tolist())]
    found: torch.Tensor = x.reshape(sizes)
    return found


def _is(size: Any, number: int) -> bool:
    return isinstance(size, int) and size == number


def flatten(call: NodeCall, x: Any) -> torch.Tensor:
    axis = call.get("axis", 1)
    if axis == 1:
        return torch.flatten(x, 1)
    lead = reduce(operator.mul, x.shape[:axis], 1)
    found: torch.Tensor = x.reshape([lead, -1])
    return found


def squeeze(call: NodeCall, x: Any, axes: Array | None = None) -> Any:
    where = axes_of(call, axes)  # ONNX Runtime takes none for all, also where they are given
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
    given = call.get("split") if sizes is None else sizes.tolist()
    if given is None and not isinstance(x.shape[axis], int):
        return _split_evenly(x, axis, call.outputs)
    found = torch.split(x, -(-x.shape[axis] // call.outputs) if given is None else given, axis)
    if len(found) != call.outputs:
        raise call.unsupported("fewer parts than outputs")
    return found


def _split_evenly(x: torch.Tensor, axis: int, parts: int) -> tuple[torch.Tensor, ...]:
    """So many parts of a size that varies; where that is too small the last ones hold nothing, and
    torch.split would give fewer."""
    each, front = -(-x.shape[axis] // parts), (slice(None),) * (axis % x.ndim)
    ends = [slice(i * each, (i + 1) * each) for i in range(parts - 1)]
    return tuple(x[(*front, end)] for end in (*ends, slice((parts - 1) * each, None)))


def _slices(call: NodeCall, rank: int, rest: tuple[Any, ...]) -> tuple[slice, ...]:
    starts, ends, axes, steps = (*rest, None, None, None, None)[:4]
    starts = call.get("starts") if starts is None else starts.tolist()
    ends = call.get("ends") if ends is None else ends.tolist()
    axes = call.get("axes", range(len(starts))) if axes is None else axes.tolist()
    steps = [1] * len(starts) if steps is None else steps.tolist()
    found = [slice(None)] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        forwards = not isinstance(step, int) or step > 0
        none = isinstance(end, int) and (end >= _END if forwards else end in _BACK_TO_FIRST)
        found[axis] = slice(start, None if none else end, step)
    return tuple(found)


def slice_elements(call: NodeCall, x: Any, *rest: Any) -> Any:
    where = tuple(map(_clamp_start, _slices(call, x.ndim, rest), x.shape))
    if isinstance(x, torch.Tensor):
        back = [d for d, s in enumerate(where) if isinstance(s.step, int) and s.step < 0]
        where = tuple(
            _reversed_slice(call, s, x.shape[d]) if d in back else s for d, s in enumerate(where)
        )
        x = x.flip(back) if back else x
    if isinstance(x, np.ndarray) and any(_is_dynamic(b) for s in where for b in (s.start, s.stop)):
        x = torch.as_tensor(x)  # numpy would make a number of the size
    return x[where]


def _clamp_start(part: slice, size: Any) -> slice:
    """Backwards from before the first place is from the first one, where Python gives nothing."""
    start, step = part.start, part.step
    if not all(isinstance(n, int) for n in (start, step, size)):
        return part
    return slice(0, part.stop, step) if step < 0 < size and start < -size else part


def _reversed_slice(call: NodeCall, backwards: slice, size: Any) -> slice:
    """The same places of a dimension that was turned round, in steps forwards."""
    start, stop, step = backwards.start, backwards.stop, backwards.step
    if isinstance(size, int) and not any(map(_is_dynamic, (start, stop))):
        first, end, _ = slice(start, stop, step).indices(size)
        return slice(size - 1 - first, max(size - 1 - end, 0), -step)
    all_of_it = isinstance(start, int) and (start == -1 or start >= _END)
    if not all_of_it or not (stop is None or (isinstance(stop, int) and stop <= -_END)):
        raise call.unsupported("negative steps over a part of a dynamic size")
    return slice(None, None, -step)


def _is_dynamic(bound: Any) -> bool:
    return isinstance(bound, torch.SymInt)


def gather(call: NodeCall, x: Any, index: Any) -> torch.Tensor:
    axis = call.get("axis", 0)
    if index.ndim == 0 and isinstance(index, np.ndarray):
        return torch.select(x, axis, int(index))
    index = _non_negative_index(call, x, index, axis)
    if axis == 0 and x.dim() == 2:
        return F.embedding(index, x)
    found = torch.index_select(x, axis, index.reshape(-1))
    axis %= x.dim()
    return found.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def gather_elements(call: NodeCall, x: Any, index: Any) -> torch.Tensor:
    axis = call.get("axis", 0)
    return torch.gather(x, axis, _non_negative_index(call, x, index, axis).long())


def _non_negative_index(call: NodeCall, x: Any, index: Any, axis: int) -> Any:
    """Negative indices count from the end, which torch's operators do not know."""
    constant = call.constants.get(1)
    if constant is None or not (constant < 0).any():
        return index
    index = torch.as_tensor(index).long()  # as the size is that is added
    return torch.where(index < 0, index + x.shape[axis], index)


def expand(call: NodeCall, x: Any, shape: Array) -> torch.Tensor:
    ones = [1] * max(0, len(shape) - x.dim())
    sizes = [*([1] * max(0, x.dim() - len(shape))), *shape.tolist()]
    kept = [old if _is(new, 1) else new for old, new in zip([*ones, *x.shape], sizes, strict=True)]
    found: torch.Tensor = x.expand(kept)
    return found


def pad(
    call: NodeCall, x: Any, pads: Array | None = None, fill: Any = None, axes: Any = None
) -> Any:
    mode, rank = call.get("mode", "constant"), x.dim()
    given = list(call.get("pads")) if pads is None else pads.tolist()
    where = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    begins, ends = [0] * rank, [0] * rank
    for i, axis in enumerate(where):
        begins[axis], ends[axis] = given[i], given[i + len(where)]
    if mode == "constant":
        value = call.get("value", 0.0) if fill is None else fill.item()
        return pad_sides(x, begins, ends, value)
    first = next((a for a in range(rank) if begins[a] or ends[a]), rank)
    pairs = zip(reversed(begins[first:]), reversed(ends[first:]), strict=True)
    widths = [w for pair in pairs for w in pair]
    if any(w < 0 for w in widths):
        raise call.unsupported("cuts instead of padding")
    torch_mode = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    return F.pad(x, widths, mode=torch_mode)


def upsample(call: NodeCall, x: Any, scales: Any = None) -> torch.Tensor:
    """Up to opset 9, where every position is asymmetric."""
    scales = call.get("scales") if scales is None else scales.tolist()
    call.require("mode", "nearest")
    if scales[:2] != [1, 1]:
        raise call.unsupported("resizes the batch or the channels")
    return F.interpolate(x, None, scales[2:], "nearest")


def resize(call: NodeCall, x: Any, *rest: Any) -> Any:
    for name, usual in (("antialias", 0), ("axes", None), ("keep_aspect_ratio_policy", "stretch")):
        call.require(name, usual)
    if call.opset < 11:
        return upsample(call, x, *rest)
    _, scales, sizes = (*rest, None, None, None)[:3]
    scales, sizes = (a.tolist() if a is not None and a.size else None for a in (scales, sizes))
    lead = scales[:2] if sizes is None and scales is not None else (sizes or [])[:2]
    outside = lead == ([1, 1] if sizes is None else list(x.shape[:2]))
    if not outside or x.dim() < 3:
        raise call.unsupported("resizes the batch or the channels")
    factors = None if scales is None else scales[2:]
    wanted = None if sizes is None else sizes[2:]
    mode, where = call.get("mode", "nearest"), call.get(_WHERE, "half_pixel")
    if mode == "nearest":
        return F.interpolate(x, wanted, factors, _nearest(call, where, factors))
    many = where != "pytorch_half_pixel" or (
        wanted is not None and all(isinstance(s, int) and s > 1 for s in wanted)
    )
    if mode == "linear" and where in ("half_pixel", "pytorch_half_pixel", "align_corners") and many:
        return F.interpolate(x, wanted, factors, _LINEAR[x.dim() - 2], where == "align_corners")
    raise call.unsupported(f"{mode}, {where}")


_WHERE = "coordinate_transformation_mode"


def _nearest(call: NodeCall, where: str, factors: Sequence[float] | None) -> str:
    """torch's word for a way to round positions."""
    rounding = call.get("nearest_mode", "round_prefer_floor")
    centred = where in ("half_pixel", "pytorch_half_pixel")
    if where == "asymmetric" and rounding == "floor":
        return "nearest"
    # the centre of each of k copies lies strictly nearer to its own element than to any other
    if centred and rounding.startswith("round") and factors and all(f % 1 == 0 for f in factors):
        return "nearest"
    if where == "half_pixel" and rounding == "round_prefer_ceil":
        return "nearest-exact"
    raise call.unsupported(f"nearest, {where}, {rounding}")


def cast(call: NodeCall, x: Any) -> torch.Tensor:
    found: torch.Tensor = x.to(torch_type(call, call.get("to")))
    return found


def torch_type(call: NodeCall, kind: int) -> torch.dtype:
    if kind not in TORCH_TYPES:
        raise call.unsupported("a type that torch has no tensors of")
    return TORCH_TYPES[kind]


def depth_to_space(call: NodeCall, x: Any) -> torch.Tensor:
    b = call.get("blocksize")
    if call.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, b)
    n, c, h, w = x.shape
    moved = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    found: torch.Tensor = moved.reshape(n, c // b**2, h * b, w * b)
    return found


def space_to_depth(call: NodeCall, x: Any) -> torch.Tensor:
    b = call.get("blocksize")
    n, c, h, w = x.shape
    moved = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    found: torch.Tensor = moved.reshape(n, c * b**2, h // b, w // b)
    return found


def constant_of_shape(call: NodeCall, shape: Array) -> torch.Tensor:
    value = call.get("value")
    array = np.zeros(1, np.float32) if value is None else value
    kind = torch.from_numpy(np.asarray(array).reshape(-1)).dtype
    return torch.full(shape.tolist(), np.asarray(array).reshape(-1)[0].item(), dtype=kind)


def eye_like(call: NodeCall, x: Any) -> torch.Tensor:
    """It reads sizes alone. Where they are known it is a constant."""
    call.require("k", 0)
    kind = call.get("dtype")
    if x.dim() != 2 or not all(isinstance(s, int) for s in x.shape):
        raise call.unsupported("of a dynamic size")
    return torch.eye(*x.shape, dtype=x.dtype if kind is None else torch_type(call, kind))
