"""Operators that move elements: the same function for codes and for floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from qtool.backends.onnx.reading import array_of, attributes_of

Move = Callable[[Tensor], Tensor]
Attributes = Mapping[str, Any]
Constants = Sequence[np.ndarray[Any, Any] | None]


def move_of(node: ir.Node) -> Move | None:
    """Return what a node does to its first input; None for no move, or computed arguments."""
    maker = MOVES.get(node.op_type)
    constants = [array_of(v) for v in node.inputs[1:]]
    unknown = [
        v for v, c in zip(node.inputs[1:], constants, strict=True) if v is not None and c is None
    ]
    if maker is None or unknown or len(node.outputs) != 1:
        return None
    return maker(attributes_of(node), constants)


def _ints(constant: np.ndarray[Any, Any] | None) -> list[int] | None:
    return None if constant is None else [int(v) for v in constant.reshape(-1)]


def _reshape(attributes: Attributes, constants: Constants) -> Move:
    sizes, copy = _ints(constants[0]) or [], not attributes.get("allowzero", 0)

    def move(x: Tensor) -> Tensor:
        return x.reshape([x.shape[i] if s == 0 and copy else s for i, s in enumerate(sizes)])

    return move


def _flatten(attributes: Attributes, constants: Constants) -> Move:
    axis = attributes.get("axis", 1)
    return lambda x: x.reshape([int(np.prod(x.shape[:axis])), -1])


def _transpose(attributes: Attributes, constants: Constants) -> Move:
    perm = attributes.get("perm")
    return lambda x: x.permute(list(perm) if perm else list(range(x.dim()))[::-1])


def _squeeze(attributes: Attributes, constants: Constants) -> Move:
    axes = _ints(constants[0]) if constants else None
    return lambda x: x.squeeze() if axes is None else x.squeeze(tuple(axes))


def _unsqueeze(attributes: Attributes, constants: Constants) -> Move:
    axes = _ints(constants[0]) or []

    def move(x: Tensor) -> Tensor:
        rank = x.dim() + len(axes)
        for axis in sorted(a % rank for a in axes):
            x = x.unsqueeze(axis)
        return x

    return move


_TO_THE_END = (2**31 - 1, 2**63 - 1)
"""Ends of a Slice that mean the end in the direction of its steps, as in the runtime."""


def _slice(attributes: Attributes, constants: Constants) -> Move:
    starts, ends, axes, steps = ([*map(_ints, constants), None, None, None, None])[:4]
    assert starts is not None
    assert ends is not None

    def move(x: Tensor) -> Tensor:
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            axis, step = (axes or range(len(starts)))[i], steps[i] if steps else 1
            last = None if end in _TO_THE_END else end
            index = range(x.shape[axis])[start:last:step]
            picked = torch.tensor(index, dtype=torch.int64)
            x = x.index_select(axis, picked) if step < 0 else _cut(x, axis, index)
        return x

    return move


def _cut(x: Tensor, axis: int, index: range) -> Tensor:
    if not len(index):
        return x.narrow(axis, 0, 0)
    return x.narrow(axis, index[0], index[-1] - index[0] + 1)[
        (slice(None),) * (axis % x.dim()) + (slice(None, None, index.step),)
    ]


def _gather(attributes: Attributes, constants: Constants) -> Move:
    indices, axis = constants[0], attributes.get("axis", 0)
    assert indices is not None
    flat = torch.from_numpy(indices.astype(np.int64).reshape(-1).copy())

    def move(x: Tensor) -> Tensor:
        at = axis % x.dim()
        rows = x.index_select(at, flat % x.shape[at])
        return rows.reshape((*x.shape[:at], *indices.shape, *x.shape[at + 1 :]))

    return move


def _expand(attributes: Attributes, constants: Constants) -> Move:
    sizes = _ints(constants[0]) or []

    def move(x: Tensor) -> Tensor:
        return x.broadcast_to(torch.broadcast_shapes(tuple(x.shape), tuple(sizes)))

    return move


def _depth_to_space(attributes: Attributes, constants: Constants) -> Move:
    block, mode = attributes["blocksize"], attributes.get("mode", "DCR")

    def move(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        if mode == "CRD":
            return torch.nn.functional.pixel_shuffle(x, block)
        parts = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
        return parts.reshape(n, c // block**2, h * block, w * block)

    return move


def _tile(attributes: Attributes, constants: Constants) -> Move:
    repeats = _ints(constants[0]) or []
    return lambda x: x.repeat(repeats)


def _resize(attributes: Attributes, constants: Constants) -> Move | None:
    """Bind nearest-neighbour resizing with asymmetric positions, rounded down; None for others."""
    floor = attributes.get("nearest_mode") == "floor"
    asymmetric = attributes.get("coordinate_transformation_mode") == "asymmetric"
    if attributes.get("mode", "nearest") != "nearest" or not (floor and asymmetric):
        return None
    _, scales, sizes = ([*constants, None, None])[:3]

    def move(x: Tensor) -> Tensor:
        for i, axis in enumerate(attributes.get("axes", range(x.dim()))):
            count = x.shape[axis]
            size = int(sizes[i]) if sizes is not None else 0
            step = scales[i] if scales is not None else np.float32(size / count)
            size = size or int(np.float32(count) * step)
            at = np.floor(np.arange(size, dtype=np.float32) / step).astype(np.int64)
            x = x.index_select(axis, torch.from_numpy(at.clip(0, count - 1)))
        return x

    return move if scales is not None or sizes is not None else None


def _identity(attributes: Attributes, constants: Constants) -> Move:
    return lambda x: x


MOVES: Mapping[str, Callable[[Attributes, Constants], Move | None]] = {
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": _identity,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
