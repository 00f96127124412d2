"""Operators of ONNX as calls of torch: activations, moves of data, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qtool.backends.onnx.moves import non_negative_index
from qtool.backends.onnx.subgraph import TORCH_TYPES
from qtool.core.ops import recurrent as cells
from qtool.core.types import Array
from qtool.frontends.onnx.node_calls import NodeCall

ATTRIBUTES = (
    "activation_alpha activation_beta activations clip direction hidden_size input_forget layout "
    "linear_before_reset"
)
"""Of all three operators; values that have no quantized form are refused with a reason."""
INPUTS = 8
_LENGTHS = 4  # position of sequence_lens
_ACTIVATIONS = {"lstm": ["Sigmoid", "Tanh", "Tanh"], "gru": ["Sigmoid", "Tanh"], "rnn": ["Tanh"]}


_REMEDIES = {
    "sequence_lens": "export it without, and read the last step of each sequence outside",
    "peepholes": "train it without, as torch's and Keras's LSTM are",
    "linear_before_reset = 0": "torch's GRU, and Keras's with reset_after=True, has 1",
}
"""What to do about a form in float."""


# ONNX activations as calls of torch.


def softmax(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(call: NodeCall, x: Tensor) -> Tensor:
        if call.opset >= 13:
            return function(x, call.get("axis", -1))
        axis = call.get("axis", 1) % x.dim()  # before opset 13 over this and all later dimensions
        return function(x.flatten(axis), axis).reshape(x.shape)

    return apply


def clip(call: NodeCall, x: Tensor, low: Array | None = None, high: Array | None = None) -> Tensor:
    low = call.get("min") if low is None else low
    high = call.get("max") if high is None else high
    kind = float if x.is_floating_point() else int
    bounds = [None if b is None else kind(b) for b in (low, high)]
    if any(b is not None and math.isnan(b) for b in bounds):
        raise call.unsupported("a bound that is NaN")
    if bounds == [None, None]:
        return x
    return torch.relu(x) if bounds == [0.0, None] else torch.clamp(x, *bounds)


def gelu(call: NodeCall, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=call.get("approximate", "none"))


def quick_gelu(call: NodeCall, x: Tensor) -> Tensor:
    alpha = call.get("alpha", 1.702)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def swish(call: NodeCall, x: Tensor) -> Tensor:
    alpha = call.get("alpha", 1.0)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def hard_sigmoid(call: NodeCall, x: Tensor) -> Tensor:
    alpha, beta = call.get("alpha", 0.2), call.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


def prelu(call: NodeCall, x: Tensor, slope: Tensor) -> Tensor:
    """Apply F.prelu to one slope or one per channel; broadcast slopes of any other shape."""
    if slope.numel() == 1:
        return F.prelu(x, slope.reshape(-1))
    sizes = [1] * (x.dim() - slope.dim()) + list(slope.shape)
    if x.dim() > 1 and sizes[1] == slope.numel() == x.shape[1]:
        return F.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, slope * x, x)


# ONNX operators that rearrange elements or make values, as calls of torch; those that the integer
# engine has, too, are in `qtool.backends.onnx.moves`.


def concat(call: NodeCall, *parts: Tensor) -> Tensor:
    return torch.cat(parts, call.get("axis"))


def split(call: NodeCall, x: Tensor, sizes: Array | None = None) -> tuple[Tensor, ...]:
    axis = call.get("axis", 0)
    lengths = call.get("split") if sizes is None else sizes.tolist()
    if lengths is None and not isinstance(x.shape[axis], int):
        return _split_evenly(x, axis, call.outputs)
    parts = torch.split(x, -(-x.shape[axis] // call.outputs) if lengths is None else lengths, axis)
    if len(parts) != call.outputs:
        raise call.unsupported("fewer parts than outputs")
    return parts


def _split_evenly(x: Tensor, axis: int, parts: int) -> tuple[Tensor, ...]:
    """Split a dynamic dimension into equal parts.

    If it is too small for that, the last parts are empty; torch.split would return fewer.
    """
    length, front = -(-x.shape[axis] // parts), (slice(None),) * (axis % x.ndim)
    slices = [slice(i * length, (i + 1) * length) for i in range(parts - 1)]
    return tuple(x[(*front, part)] for part in (*slices, slice((parts - 1) * length, None)))


def gather_elements(call: NodeCall, x: Tensor, index: Tensor) -> Tensor:
    axis = call.get("axis", 0)
    return torch.gather(x, axis, non_negative_index(call, x, index, axis).long())


def cast(call: NodeCall, x: Tensor) -> Tensor:
    return x.to(torch_type(call, call.get("to")))


def torch_type(call: NodeCall, kind: int) -> torch.dtype:
    if kind not in TORCH_TYPES:
        raise call.unsupported("a type without torch tensors")
    return TORCH_TYPES[kind]


def space_to_depth(call: NodeCall, x: Tensor) -> Tensor:
    b = call.get("blocksize")
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * b**2, h // b, w // b)


def constant_of_shape(call: NodeCall, shape: Array) -> Tensor:
    value = call.get("value")
    array = np.zeros(1, np.float32) if value is None else np.array(value)  # a writable copy
    kind = torch.from_numpy(array.reshape(-1)).dtype
    return torch.full(shape.tolist(), array.reshape(-1)[0].item(), dtype=kind)


def eye_like(call: NodeCall, x: Tensor) -> Tensor:
    """Return an identity matrix of the input's sizes: a constant, if they are fixed."""
    call.require("k", 0)
    kind = call.get("dtype")
    if x.dim() != 2 or not all(isinstance(s, int) for s in x.shape):
        raise call.unsupported("a dynamic size")
    return torch.eye(*x.shape, dtype=x.dtype if kind is None else torch_type(call, kind))


# LSTM, GRU and RNN of ONNX files, in the forms whose weights can be quantized.


def recurrent(kind: str) -> Callable[..., Any]:
    """Return the function of "lstm", "gru" or "rnn".

    A reversed layer is a forward one on the reversed sequence. Sequence lengths that are all the
    whole length count as none.
    """

    def apply(
        call: NodeCall, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, *rest: Any
    ) -> Any:
        lengths, h, c, peepholes = (*rest, None, None, None, None)[:4]
        names = [n.decode() for n in call.get("activations", [])] or _ACTIVATIONS[kind] * len(w)
        partial_lengths = lengths is not None and not _all_whole(call, x.shape[0])
        forms = _forms_in_float(kind, call, names, partial_lengths, peepholes is not None)
        if (form := next(forms, None)) is not None:
            remedy = f"; {_REMEDIES[form]}" if form in _REMEDIES else ""
            raise call.unsupported(f"qtool quantizes no {kind.upper()} with {form}{remedy}")
        backwards = call.get("direction", "forward") == "reverse"
        x = x.flip(0) if backwards else x
        b = w.new_zeros(len(w), 2 * w.shape[1]) if b is None else b
        if kind == "lstm":
            y, *last = cells.lstm(x, w, r, b, h, c)
        elif kind == "gru":
            y, *last = cells.gru(x, w, r, b, h)
        else:
            y, *last = cells.rnn(x, w, r, b, h, names[0].lower())
        return (y.flip(0) if backwards else y, *last)

    return apply


def _all_whole(call: NodeCall, steps: int | torch.SymInt) -> bool:
    """Return whether the lengths are a constant that is the length of the sequence."""
    lengths = call.constants.get(_LENGTHS)
    return lengths is not None and isinstance(steps, int) and bool((lengths == steps).all())


def _forms_in_float(
    kind: str, call: NodeCall, names: list[str], lengths: bool, peepholes: bool
) -> Iterator[str]:
    """Yield what a layer has and no quantized kernel computes."""
    usual = [_ACTIVATIONS[kind], *([["Relu"]] if kind == "rnn" else [])]
    if lengths:
        yield "sequence_lens"
    if peepholes:
        yield "peepholes"
    if [n.title() for n in names] not in [
        each * directions for each in usual for directions in (1, 2)
    ]:
        yield f"the activations {', '.join(names)}"
    for name in ("input_forget", "layout"):
        if call.get(name, 0):
            yield f"{name} = {call.get(name)}"
    if call.get("clip") is not None:
        yield "clip"
    if kind == "gru" and not call.get("linear_before_reset", 0):
        yield "linear_before_reset = 0"
