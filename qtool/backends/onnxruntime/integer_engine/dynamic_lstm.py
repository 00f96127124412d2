"""DynamicQuantizeLSTM: binds the kernel to the weights of each direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.reading import OnnxModel, array_of, input_at
from qtool.backends.onnxruntime.integer_engine.node_forms import BoundKernel, NodeForm, RandomInput
from qtool.backends.onnxruntime.kernels.recurrent import LstmDirection
from qtool.backends.profiles import Profile
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8, UINT8

_W, _R, _B, _LENGTHS, _H, _C, _PEEPHOLES, _W_SCALE, _W_ZERO, _R_SCALE, _R_ZERO = range(1, 12)
_STORED = (_W, _R, _B, _W_SCALE, _W_ZERO, _R_SCALE, _R_ZERO)
_BACKWARDS: Mapping[str, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}
_TIME, _BATCH, _INPUTS, _HIDDEN = 3, 5, 13, 21  # of a form: not multiples of a vector


@dataclass(frozen=True)
class _Kind:
    """What decides how a node computes.

    Attributes:
        direction: as in the file.
        types, per_channel: element types of W and R, and whether their scales are per channel.
        bias: whether it has one.
        states: whether initial states are inputs.
    """

    direction: str
    types: tuple[str, str]
    per_channel: tuple[bool, bool]
    bias: bool
    states: bool


def dynamic_lstm(node: Node, file: OnnxModel, profile: Profile) -> BoundKernel | None:
    """Return the kernel of a DynamicQuantizeLSTM, None for forms without one."""
    attributes, present = node.attributes, [input_at(node, i) is not None for i in range(12)]
    stored = {i: array_of(input_at(node, i)) for i in _STORED}
    if any(present[i] != (array is not None) for i, array in stored.items()):
        return None  # computed at run time
    plain = not (attributes.keys() - {"hidden_size", "direction"} or present[_LENGTHS])
    direction = attributes.get("direction", "forward")
    if (
        not plain
        or present[_PEEPHOLES]
        or present[_H] != present[_C]
        or direction not in _BACKWARDS
    ):
        return None

    known = {i: torch.from_numpy(array) for i, array in stored.items() if array is not None}
    layers = [_part(known, *each) for each in enumerate(_BACKWARDS[direction])]
    kernel = profile.bind("dynamic_lstm", layers)
    inputs = [node.inputs[i] for i in ((0, _H, _C) if present[_H] else (0,))]
    types = str(layers[0].w.qtype), str(layers[0].r.qtype)
    per_channel = known[_W_SCALE].dim() > 1, known[_R_SCALE].dim() > 1
    kind = _Kind(direction, types, per_channel, present[_B], present[_H])
    if len(node.outputs) != 3:
        return None
    return BoundKernel(kernel, inputs, _form(kind))


def _part(known: Mapping[int, Tensor], at: int, backwards: bool) -> LstmDirection:
    w, r = (
        _params(known[codes], known[scale][at], known[zero][at])
        for codes, scale, zero in ((_W, _W_SCALE, _W_ZERO), (_R, _R_SCALE, _R_ZERO))
    )
    weight, recurrent = (known[i][at].t().contiguous() for i in (_W, _R))
    bias = known[_B][at] if _B in known else None
    return LstmDirection(weight, w, recurrent, r, bias, backwards)


def _params(codes: Tensor, scale: Tensor, zero: Tensor) -> QuantParams:
    qtype = INT8 if codes.dtype == torch.int8 else UINT8
    zeros = zero.to(torch.int64).expand(scale.shape).clone()
    return QuantParams(qtype, scale, zeros, 0 if scale.dim() else None)


def _form(kind: _Kind) -> NodeForm:
    count = len(_BACKWARDS[kind.direction])
    sizes = [(count, 4 * _HIDDEN) if many else (count,) for many in kind.per_channel]
    state = RandomInput((count, _BATCH, _HIDDEN), runtime_input=True) if kind.states else None
    numbers = (
        RandomInput(size, t, high=below, std=0.004)
        for size, type_ in zip(sizes, kind.types, strict=True)
        for t, below in (("float32", None), (type_, 1))
    )
    specs = (
        RandomInput((_TIME, _BATCH, _INPUTS), runtime_input=True),
        RandomInput((count, _INPUTS, 4 * _HIDDEN), kind.types[0]),
        RandomInput((count, _HIDDEN, 4 * _HIDDEN), kind.types[1]),
        RandomInput((count, 8 * _HIDDEN)) if kind.bias else None,
        None,
        state,
        state,
        None,
        *numbers,
    )
    attributes = (("hidden_size", _HIDDEN), ("direction", kind.direction))
    return NodeForm("DynamicQuantizeLSTM", specs, "com.microsoft", attributes, outputs=3)
