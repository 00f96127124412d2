"""ONNX operators that rearrange elements or make values, as calls of torch; those that the integer
engine has, too, are in `qtool.backends.onnx.moves`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtool.backends.onnx.moves import non_negative_index
from qtool.backends.onnx.subgraph import TORCH_TYPES
from qtool.frontends.onnx.node_calls import Array, NodeCall


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


def gather_elements(call: NodeCall, x: torch.Tensor, index: Any) -> torch.Tensor:
    axis = call.get("axis", 0)
    return torch.gather(x, axis, non_negative_index(call, x, index, axis).long())


def cast(call: NodeCall, x: torch.Tensor) -> torch.Tensor:
    return x.to(torch_type(call, call.get("to")))


def torch_type(call: NodeCall, kind: int) -> torch.dtype:
    if kind not in TORCH_TYPES:
        raise call.unsupported("a type without torch tensors")
    return TORCH_TYPES[kind]


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
