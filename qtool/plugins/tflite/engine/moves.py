"""Operators that move elements, of any type, and those that compute sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F

from qtool.core.errors import KernelError
from qtool.plugins.tflite.engine.call import Call
from qtool.plugins.tflite.file.codes import is_codes

Move = Callable[..., torch.Tensor]
Bind = Callable[[Call], Move]


def _reshape(call: Call) -> Move:
    signature = call.output.signature or call.output.shape
    if call.tensor(1) is not None and call.input(1).data is not None:
        sizes = call.numbers(1)
    else:
        sizes = list(signature)
    if sizes.count(-1) > 1:
        raise KernelError(f"RESHAPE to {sizes} has no definite size")
    return lambda x, *_: x.reshape(sizes)


def _transpose(call: Call) -> Move:
    axes = call.numbers(1)
    return lambda x, *_: x.permute(axes).contiguous()


def _strided_slice(call: Call) -> Move:
    """Bind STRIDED_SLICE with numbers; bit i of a mask belongs to axis i."""
    begin, end, step = (call.numbers(i) for i in (1, 2, 3))
    if call.option("ellipsis_mask") or call.option("new_axis_mask") or call.option("offset"):
        raise KernelError(
            "STRIDED_SLICE with an ellipsis, a new axis or an offset is not supported"
        )
    if any(s < 1 for s in step):
        raise KernelError("STRIDED_SLICE that goes backwards is not supported")
    masks = [int(call.option(f"{name}_mask")) for name in ("begin", "end", "shrink_axis")]

    def run(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        index: list[Any] = []
        for i, (b, e, s) in enumerate(zip(begin, end, step, strict=True)):
            opens = [bool(mask >> i & 1) for mask in masks]
            if opens[2]:
                index.append(b)
            else:
                index.append(slice(None if opens[0] else b, None if opens[1] else e, s))
        return x[tuple(index)].contiguous()

    return run


def _slice(call: Call) -> Move:
    begin, size = call.numbers(1), call.numbers(2)

    def run(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        index = tuple(slice(b, None if n < 0 else b + n) for b, n in zip(begin, size, strict=True))
        return x[index].contiguous()

    return run


def _gather(call: Call) -> Move:
    axis = int(call.option("axis"))
    if call.option("batch_dims"):
        raise KernelError("GATHER with batch dimensions is not supported")

    def run(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        at = axis % x.dim()
        picked = x.index_select(at, index.flatten().long())
        return picked.reshape(*x.shape[:at], *index.shape, *x.shape[at + 1 :])

    return run


def _pad(call: Call) -> Move:
    """Bind PAD, which fills codes with the zero point, or PADV2."""
    pairs = call.numbers(1)
    if call.operator.name == "PADV2":
        fill = call.stored(2).flatten()[0].item()
    else:
        fill = int(call.params().zero_point) if is_codes(call.input()) else 0
    around = [n for axis in range(len(pairs) // 2 - 1, -1, -1) for n in pairs[2 * axis :][:2]]
    return lambda x, *_: F.pad(x, around, value=fill)


def _tile(call: Call) -> Move:
    return lambda x, times: x.repeat(*times.tolist())


def _reverse(call: Call) -> Move:
    axes = call.numbers(1)
    return lambda x, *_: x.flip(axes)


def _concat(call: Call) -> Move:
    axis = int(call.option("axis"))
    return lambda *parts: torch.cat(parts, axis)


def _nearest(call: Call) -> Move:
    """Bind RESIZE_NEAREST_NEIGHBOR: positions are computed in float32."""
    sizes = call.numbers(1)
    corners, half = call.option("align_corners", False), call.option("half_pixel_centers", False)

    def places(size: int, new: int) -> torch.Tensor:
        numbers = torch.arange(new, dtype=torch.float32)
        scale = torch.tensor(float(size), dtype=torch.float32) / new
        if corners and new > 1:
            scale = torch.tensor(float(size - 1), dtype=torch.float32) / (new - 1)
        moved = (numbers + 0.5 if half else numbers) * scale
        whole = torch.floor(moved + 0.5) if corners else torch.floor(moved)
        return whole.long().clamp(0, size - 1)

    def run(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        rows = x.index_select(1, places(x.shape[1], sizes[0]))
        return rows.index_select(2, places(x.shape[2], sizes[1]))

    return run


def _depth_to_space(call: Call) -> Move:
    block = int(call.option("block_size"))

    def run(x: torch.Tensor) -> torch.Tensor:
        split: torch.Tensor = x.unflatten(3, (block, block, -1)).transpose(2, 3)
        return split.flatten(3, 4).flatten(1, 2)

    return run


def _space_to_depth(call: Call) -> Move:
    block = int(call.option("block_size"))

    def run(x: torch.Tensor) -> torch.Tensor:
        split: torch.Tensor = x.unflatten(1, (-1, block)).unflatten(3, (-1, block))
        return split.transpose(2, 3).flatten(3)

    return run


def _shape(call: Call) -> Move:
    return lambda x: torch.tensor(x.shape, dtype=torch.int32)


def _squeeze(call: Call) -> Move:
    axes = [int(a) for a in call.option("squeeze_dims", ())]

    def run(x: torch.Tensor) -> torch.Tensor:
        chosen = axes or [i for i, size in enumerate(x.shape) if size == 1]
        return x.squeeze(tuple(chosen))

    return run


def _expand_dims(call: Call) -> Move:
    axis = call.numbers(1)[0]
    return lambda x, *_: x.unsqueeze(axis)


def _broadcast(call: Call) -> Move:
    return lambda x, sizes: x.expand(*sizes.tolist()).contiguous()


def _pack(call: Call) -> Move:
    axis = int(call.option("axis"))
    return lambda *parts: torch.stack(parts, axis)


MOVES: Mapping[str, Bind] = {
    "BROADCAST_TO": _broadcast,
    "DEPTH_TO_SPACE": _depth_to_space,
    "EXPAND_DIMS": _expand_dims,
    "GATHER": _gather,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad,
    "RESHAPE": _reshape,
    "RESIZE_NEAREST_NEIGHBOR": _nearest,
    "REVERSE_V2": _reverse,
    "SHAPE": _shape,
    "SLICE": _slice,
    "SPACE_TO_DEPTH": _space_to_depth,
    "SQUEEZE": _squeeze,
    "STRIDED_SLICE": _strided_slice,
    "TILE": _tile,
    "TRANSPOSE": _transpose,
}
"""Operator of the schema -> how its move is bound."""

CONCATENATION: Bind = _concat
"""Of tensors that hold no codes."""
