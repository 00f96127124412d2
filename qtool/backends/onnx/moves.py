"""ONNX operators that move elements, as calls of torch: of floats in the reader of files, of codes
in the integer engine. ONNX Runtime checks both.

An input besides the first is an array if it is known without data, with symbols for dynamic sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch.nn import functional as F

from qtool.core.types import Array

Elements = TypeVar("Elements", torch.Tensor, Array)

_END = 2**31 - 1  # "to the end" in a Slice
_BACK_TO_FIRST = (2**31 - 1, 2**63 - 1)  # the same in ONNX Runtime if the step is negative


class Call(Protocol):
    """One node.

    Attributes:
        constants: position -> constant input.
    """

    @property
    def constants(self) -> Mapping[int, Array]: ...

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""

    def unsupported(self, why: str) -> Exception:
        """Return the exception to raise for a form that has no torch form."""


def axes_of(call: Call, axes: Array | None) -> list[int] | None:
    """Return axes from the input (newer opsets) or the attribute (older ones)."""
    return call.get("axes") if axes is None else [int(a) for a in axes.ravel()]


def identity(call: Call, x: Elements) -> Elements:
    return x


def reshape(call: Call, x: torch.Tensor, shape: Array) -> torch.Tensor:
    keep = not call.get("allowzero", 0)
    sizes = [x.shape[i] if keep and _is(s, 0) else s for i, s in enumerate(shape.tolist())]
    return x.reshape(sizes)


def _is(size: int | torch.SymInt, number: int) -> bool:
    """Compare a size with a number; a symbol is not evaluated, which would specialize it."""
    return isinstance(size, int) and size == number


def flatten(call: Call, x: torch.Tensor) -> torch.Tensor:
    axis = call.get("axis", 1)
    if axis == 1 and x.dim() > 1:
        return torch.flatten(x, 1)
    rows = reduce(operator.mul, x.shape[:axis], 1)
    return x.reshape([rows, -1])


def transpose(call: Call, x: torch.Tensor) -> torch.Tensor:
    return x.permute(call.get("perm", list(range(x.dim()))[::-1]))


def squeeze(call: Call, x: Elements, axes: Array | None = None) -> Elements:
    where = axes_of(call, axes)  # ONNX Runtime removes all dimensions of 1 for an empty list, too
    return x.squeeze(tuple(where)) if where else x.squeeze()


def unsqueeze(call: Call, x: Any, axes: Array | None = None) -> Any:
    where = axes_of(call, axes) or []
    for axis in sorted(a % (x.ndim + len(where)) for a in where):
        x = np.expand_dims(x, axis) if isinstance(x, np.ndarray) else x.unsqueeze(axis)
    return x


def reduction(
    function: Callable[..., torch.Tensor], noop: bool = True
) -> Callable[..., torch.Tensor]:
    """Return a reduction over axes.

    Args:
        function: torch's reduction.
        noop: the reduction of a single element is the element.
    """

    def apply(call: Call, x: torch.Tensor, axes: Array | None = None) -> torch.Tensor:
        where, keep = axes_of(call, axes), bool(call.get("keepdims", 1))
        if not where and call.get("noop_with_empty_axes", 0):
            if not noop:
                raise call.unsupported("no axes")
            return x
        return function(x, dim=tuple(where or range(x.dim())), keepdim=keep)

    return apply


def _slices(call: Call, rank: int, rest: tuple[Any, ...]) -> tuple[slice, ...]:
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


def slice_elements(call: Call, x: Any, *rest: Array | None) -> Any:
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


def _clamp_start(part: slice, size: int | torch.SymInt) -> slice:
    """Clamp the start of a negative step to the first element; Python returns nothing there."""
    start, step = part.start, part.step
    if not all(isinstance(n, int) for n in (start, step, size)):
        return part
    return slice(0, part.stop, step) if step < 0 < size and start < -size else part


def _reversed_slice(call: Call, backwards: slice, size: int | torch.SymInt) -> slice:
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


def gather(call: Call, x: torch.Tensor, index: Any) -> torch.Tensor:
    axis = call.get("axis", 0)
    if index.ndim == 0 and isinstance(index, np.ndarray):
        return torch.select(x, axis, int(index))
    index = non_negative_index(call, x, index, axis)
    if axis == 0 and x.dim() == 2:
        return F.embedding(index, x)
    rows = torch.index_select(x, axis, index.reshape(-1))
    axis %= x.dim()
    return rows.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def non_negative_index(call: Call, x: torch.Tensor, index: Any, axis: int) -> Any:
    """Add the size to negative indices, which torch's operators do not support."""
    constant = call.constants.get(1)
    if constant is None or not (constant < 0).any():
        return index
    index = torch.as_tensor(index).long()  # the type of the size that is added
    return torch.where(index < 0, index + x.shape[axis], index)


def expand(call: Call, x: torch.Tensor, shape: Array) -> torch.Tensor:
    ones = [1] * max(0, len(shape) - x.dim())
    sizes = [*([1] * max(0, x.dim() - len(shape))), *shape.tolist()]
    pairs = zip([*ones, *x.shape], sizes, strict=True)
    return x.expand([old if _is(new, 1) else new for old, new in pairs])


def tile(call: Call, x: torch.Tensor, repeats: Array) -> torch.Tensor:
    return x.repeat(repeats.tolist())


def depth_to_space(call: Call, x: torch.Tensor) -> torch.Tensor:
    b = call.get("blocksize")
    if call.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, b)
    n, c, h, w = x.shape
    blocks = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // b**2, h * b, w * b)
