"""The torch operators that qtool adds to ATen, each with the meaning of one ONNX operator.

conv and global_average_pool are composite: torch sees through them for autograd and devices.
quantize, dequantize, pad_codes, idle, reshape and the linear layers on integer weights stand only
in graphs about to be exported; they are opaque, so that tracing them costs nothing and adds no
guards on dynamic sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from qtool.types import UINT8, held_in

__all__ = [
    "conv",
    "dequantize",
    "dynamic_linear",
    "embedding",
    "embedding_codes",
    "gemm",
    "global_average_pool",
    "gru",
    "idle",
    "linear_4bit",
    "lstm",
    "pack_4bit",
    "pad_codes",
    "quantize",
    "range_of_batch",
    "rescale",
    "reshape",
    "rnn",
    "unpack_4bit",
]

_lib = torch.library.Library("qtool", "DEF")
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _define(
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any] | None = None,
) -> torch._ops.OpOverload:
    name = _lib.define(schema)
    _lib.impl(name, function, "CompositeExplicitAutograd" if fake else "CompositeImplicitAutograd")
    if fake is not None:
        torch.library.register_fake(f"qtool::{name}", fake, lib=_lib)
    overload: torch._ops.OpOverload = getattr(torch.ops.qtool, name).default
    return overload


def per_channel(t: torch.Tensor, axis: int | None, rank: int) -> torch.Tensor:
    """Rank-1 parameters reshaped to broadcast along `axis` of a tensor of `rank` dimensions."""
    return t if axis is None else t.reshape([-1 if d == axis % rank else 1 for d in range(rank)])


def _quantize(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
    codes = held_in(zero_point.dtype).codes(x, scale, zero_point.to(torch.float32))
    return codes.to(zero_point.dtype)


def _dequantize(
    codes: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int | None
) -> torch.Tensor:
    scale = per_channel(scale, axis, codes.dim())
    zero_point = per_channel(zero_point, axis, codes.dim())
    return (codes.to(torch.int32) - zero_point.to(torch.int32)).to(torch.float32) * scale


def _quantized(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, dtype=zero_point.dtype)


def _dequantized(
    codes: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int | None
) -> torch.Tensor:
    return torch.empty_like(codes, dtype=scale.dtype)


def _conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    pads: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    rank = len(stride)
    before, after = pads[:rank], pads[rank:]
    if before == after:
        return _CONV[rank](x, weight, bias, stride, before, dilation, groups)
    widths = [w for pair in zip(reversed(before), reversed(after), strict=True) for w in pair]
    return _CONV[rank](F.pad(x, widths), weight, bias, stride, 0, dilation, groups)


def _global_average_pool(x: torch.Tensor) -> torch.Tensor:
    return x.mean(dim=list(range(2, x.dim())), keepdim=True)


def _embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, weight)


def _embedding_codes(ids: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return codes[ids].float() * scale[ids].unsqueeze(-1)


def _pad_codes(codes: torch.Tensor, widths: list[int], value: int) -> torch.Tensor:
    return F.pad(codes, widths, value=value)


def _padded(codes: torch.Tensor, widths: list[int], value: int) -> torch.Tensor:
    size = list(codes.shape)
    for i in range(len(widths) // 2):
        size[-1 - i] += widths[2 * i] + widths[2 * i + 1]
    return codes.new_empty(size)


def range_of_batch(x: torch.Tensor, qmin: int, qmax: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point (in float) as DynamicQuantizeLinear finds them for the whole tensor."""
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = (high - low) / (qmax - qmin)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return scale, torch.round(qmin - low / scale).clamp(qmin, qmax)


def _dynamic_linear(
    x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    x_scale, zero = range_of_batch(x, UINT8.qmin, UINT8.qmax)
    quantized = UINT8.codes(x, x_scale, zero) - zero
    sums = quantized.double() @ codes.double()  # integers, exact
    result = sums.to(torch.float32) * (x_scale * scale)
    return result if bias is None else result + bias


def _columns(x: torch.Tensor, codes: torch.Tensor, *rest: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty([*x.shape[:-1], codes.shape[-1]])


def _gemm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return F.linear(x, weight.t(), bias)


def pack_4bit(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 two to a byte along the last dimension, the first in the low half."""
    codes = F.pad(codes, (0, codes.shape[-1] % 2))
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_4bit(packed: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` codes of each row of `pack_4bit`."""
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)[..., :count]


def _linear_4bit(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    outputs, blocks, half = packed.shape
    codes = unpack_4bit(packed, 2 * half).float()
    zero = unpack_4bit(zero_point.reshape(outputs, -1), blocks).float()
    weight = (codes - zero[..., None]) * scale.reshape(outputs, blocks, 1)
    return F.linear(x, weight.reshape(outputs, -1)[:, : x.shape[-1]], bias)


def _rows(x: torch.Tensor, packed: torch.Tensor, *rest: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty([*x.shape[:-1], packed.shape[0]])


GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""Recurrent layer -> where torch has the gates that ONNX has in this order."""


def _recurrent(
    kind: str,
    kernel: Callable[..., Any],
    x: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    state: Sequence[torch.Tensor | None],
) -> Any:
    w, r, b = weights
    count, hidden, back = (
        len(w),
        r.shape[2],
        [GATES[kind].index(g) for g in range(len(GATES[kind]))],
    )

    def as_torch(t: torch.Tensor) -> torch.Tensor:
        gates: torch.Tensor = t.unflatten(0, (-1, hidden))[back]
        return gates.flatten(0, 1)

    parts = []
    for d in range(count):
        both = b[d].chunk(2)
        parts += [as_torch(t) for t in (w[d], r[d], *both)]
    given = [x.new_zeros(count, x.shape[1], hidden) if s is None else s for s in state]
    first = given if kind == "lstm" else given[0]
    y, *last = kernel(x, first, parts, True, 1, 0.0, False, count == 2, False)
    return (y.unflatten(-1, (count, hidden)).transpose(1, 2), *last)


def _lstm(
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor,
    h: torch.Tensor | None,
    c: torch.Tensor | None,
) -> Any:
    return _recurrent("lstm", torch.ops.aten.lstm.input, x, (w, r, b), (h, c))


def _gru(
    x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor, h: torch.Tensor | None
) -> Any:
    return _recurrent("gru", torch.ops.aten.gru.input, x, (w, r, b), (h,))


def _rnn(
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor,
    h: torch.Tensor | None,
    function: str,
) -> Any:
    kernels = {"tanh": torch.ops.aten.rnn_tanh.input, "relu": torch.ops.aten.rnn_relu.input}
    return _recurrent("rnn", kernels[function], x, (w, r, b), (h,))


quantize = _define(
    "quantize(Tensor x, Tensor scale, Tensor zero_point) -> Tensor",
    _quantize,
    fake=_quantized,
)
"""QuantizeLinear, per tensor: saturate(rint(x / scale) + zero_point) in zero_point's dtype."""

dequantize = _define(
    "dequantize(Tensor codes, Tensor scale, Tensor zero_point, int? axis) -> Tensor",
    _dequantize,
    fake=_dequantized,
)
"""DequantizeLinear: f32(codes - zero_point) * scale; per channel along `axis` unless None."""

embedding = _define("embedding(Tensor ids, Tensor weight) -> Tensor", _embedding)
"""Gather: rows of a table [rows, width] by ids of any shape."""

embedding_codes = _define(
    "embedding_codes(Tensor ids, Tensor codes, Tensor scale) -> Tensor", _embedding_codes
)
"""Rows of int8 codes [rows, width], each dequantized with its own scale [rows]."""

idle = _define("idle(Tensor x) -> Tensor", torch.clone, fake=torch.empty_like)
"""Max of one tensor: changes nothing. Between a float operator and the quantization of its result
it keeps a runtime from taking the integer kernel all the same."""

pad_codes = _define(
    "pad_codes(Tensor codes, int[] widths, int value) -> Tensor", _pad_codes, fake=_padded
)
"""Pad with a code; `widths` as in torch: (begin, end) pairs from the last dimension."""

conv = _define(
    "conv(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] pads, int[] dilation,"
    " int groups) -> Tensor",
    _conv,
)
"""Conv over 1, 2 or 3 spatial dimensions; `pads` are all beginnings, then all ends, as in ONNX."""

dynamic_linear = _define(
    "dynamic_linear(Tensor x, Tensor codes, Tensor scale, Tensor? bias) -> Tensor",
    _dynamic_linear,
    fake=_columns,
)
"""x @ (codes * scale) + bias, x quantized to uint8 in its own range; codes are int8, [in, out]."""

gemm = _define("gemm(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _gemm)
"""Gemm: x @ weight + bias; the weight is [in, out], as the runtime's kernels on codes want it."""

linear_4bit = _define(
    "linear_4bit(Tensor x, Tensor packed, Tensor scale, Tensor zero_point, Tensor? bias) -> Tensor",
    _linear_4bit,
    fake=_rows,
)
"""MatMulNBits: `packed` is [out, blocks, block/2], two codes to a byte; so are the zero points."""

rescale = _define("rescale(Tensor x, float factor) -> Tensor", lambda x, factor: x * factor)
"""x * factor: the same codes with `factor` times the scale."""

lstm = _define(
    "lstm(Tensor x, Tensor w, Tensor r, Tensor b, Tensor? h, Tensor? c)"
    " -> (Tensor, Tensor, Tensor)",
    _lstm,
)
"""LSTM, one layer: x [time, batch, in], w [directions, 4 x hidden, in], r [directions, 4 x hidden,
hidden], b [directions, 8 x hidden], gates as in ONNX; h and c [directions, batch, hidden], zeros
where None. Gives all states [time, directions, batch, hidden], and the last h and c."""

gru = _define("gru(Tensor x, Tensor w, Tensor r, Tensor b, Tensor? h) -> (Tensor, Tensor)", _gru)
"""GRU with linear_before_reset, one layer; three gates, otherwise as `lstm`."""

rnn = _define(
    "rnn(Tensor x, Tensor w, Tensor r, Tensor b, Tensor? h, str function) -> (Tensor, Tensor)", _rnn
)
"""RNN, one layer, `function` "tanh" or "relu"; one gate, otherwise as `lstm`."""

reshape = _define(
    "reshape(Tensor x, SymInt[] sizes) -> Tensor",
    lambda x, sizes: x.reshape(sizes).clone(),
    fake=lambda x, sizes: x.new_empty(x.reshape(sizes).shape),
)
"""Reshape: ATen's, but opaque."""

global_average_pool = _define("global_average_pool(Tensor x) -> Tensor", _global_average_pool)
"""GlobalAveragePool: the mean over all dimensions but the first two, kept with size 1."""
