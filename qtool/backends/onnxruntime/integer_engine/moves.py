"""Operators that move elements: the same function for codes and for floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qtool.backends.onnx import moves
from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.reading import array_of
from qtool.core.errors import KernelError
from qtool.core.types import Array

Move = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Call:
    """A node whose inputs besides the first are constants, as `moves.Call`."""

    name: str
    attributes: Mapping[str, Any]
    constants: Mapping[int, Array]

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def unsupported(self, why: str) -> KernelError:
        return KernelError(f"{self.name}: {why}")


def move_of(node: Node) -> Move | None:
    """Return what a node does to its first input; None for no move, or computed arguments."""
    function = MOVES.get(node.op_type)
    arrays = [array_of(v) for v in node.inputs[1:]]
    unknown = any(v is not None and c is None for v, c in zip(node.inputs[1:], arrays, strict=True))
    if function is None or unknown or len(node.outputs) != 1:
        return None
    constants = {i: a for i, a in enumerate(arrays, 1) if a is not None}
    call = _Call(str(node.name), node.attributes, constants)
    if node.op_type == "Resize" and not _is_exact(call):
        return None
    arguments: list[Any] = list(arrays)
    if node.op_type == "Gather" and arguments[0].ndim:
        arguments[0] = torch.from_numpy(arguments[0].astype(np.int64))

    def move(x: Tensor) -> Tensor:
        return function(call, x, *arguments)

    return move


def _is_exact(resize: _Call) -> bool:
    """Return whether a Resize takes the nearest element at asymmetric positions, rounded down."""
    floor = resize.get("nearest_mode") == "floor"
    asymmetric = resize.get("coordinate_transformation_mode") == "asymmetric"
    nearest = resize.get("mode", "nearest") == "nearest"
    return nearest and floor and asymmetric and bool({2, 3} & resize.constants.keys())


def _resize(
    call: _Call,
    x: Tensor,
    roi: Array | None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Tensor:
    """Take the elements at positions that are rounded as in the runtime, in float32."""
    for i, axis in enumerate(call.get("axes", range(x.dim()))):
        count = x.shape[axis]
        size = int(sizes[i]) if sizes is not None else 0
        step = scales[i] if scales is not None else np.float32(size / count)
        size = size or int(np.float32(count) * step)
        at = np.floor(np.arange(size, dtype=np.float32) / step).astype(np.int64)
        x = x.index_select(axis, torch.from_numpy(at.clip(0, count - 1)))
    return x


MOVES: Mapping[str, Callable[..., Tensor]] = {
    "DepthToSpace": moves.depth_to_space,
    "Expand": moves.expand,
    "Flatten": moves.flatten,
    "Gather": moves.gather,
    "Identity": moves.identity,
    "ReduceMax": moves.reduction(torch.amax),
    "ReduceMin": moves.reduction(torch.amin),
    "Reshape": moves.reshape,
    "Resize": _resize,
    "Slice": moves.slice_elements,
    "Squeeze": moves.squeeze,
    "Tile": moves.tile,
    "Transpose": moves.transpose,
    "Unsqueeze": moves.unsqueeze,
}
"""Operator type -> function of (call, first input, constants)."""
