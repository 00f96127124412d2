"""Torch operators of qtool, each with the semantics of one ONNX operator.

conv and global_average_pool are composite: torch decomposes them for autograd and devices.
quantize, dequantize, pad_codes, idle, reshape and the linear layers on integer weights occur only
in graphs to export; they are opaque, so that tracing is fast and adds no guards on dynamic sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from qtool.core.packed_codes import unpack
from qtool.core.types import UINT8, storage_qtype

_lib = torch.library.Library("qtool", "DEF")
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE_POOL: Mapping[int, Callable[..., Any]] = {2: F.avg_pool2d, 3: F.avg_pool3d}


def define(
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any] | None = None,
) -> torch._ops.OpOverload:
    """Define an operator `qtool::...`: opaque if `fake` infers its result, else composite."""
    name = _lib.define(schema)
    _lib.impl(name, function, "CompositeExplicitAutograd" if fake else "CompositeImplicitAutograd")
    if fake is not None:
        torch.library.register_fake(f"qtool::{name}", fake, lib=_lib)
    overload: torch._ops.OpOverload = getattr(torch.ops.qtool, name).default
    return overload


def per_channel(t: torch.Tensor, axis: int | None, rank: int) -> torch.Tensor:
    """Return rank-1 parameters reshaped to broadcast along `axis` of a tensor of this rank."""
    return t if axis is None else t.reshape([-1 if d == axis % rank else 1 for d in range(rank)])


def _quantize(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
    codes = storage_qtype(zero_point.dtype).codes(x, scale, zero_point.to(torch.float32))
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


def _conv_transpose(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    output_padding: list[int],
    groups: int,
    dilation: list[int],
) -> torch.Tensor:
    function = _TRANSPOSED[len(stride)]
    return function(x, weight, bias, stride, padding, output_padding, groups, dilation)


def _max_pool(
    x: torch.Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> torch.Tensor:
    pooled: torch.Tensor = _MAX_POOL[len(kernel)](x, kernel, stride, padding, dilation, ceil_mode)
    return pooled


def _average_pool(
    x: torch.Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    counted: bool,
    divisor: int | None,
) -> torch.Tensor:
    rank = len(kernel)
    if rank == 1:  # ATen's avg_pool1d has no divisor
        wide = ([1, *kernel], [1, *stride], [0, *padding], ceil_mode, counted, divisor)
        return F.avg_pool2d(x.unsqueeze(-2), *wide).squeeze(-2)
    pooled: torch.Tensor = _AVERAGE_POOL[rank](
        x, kernel, stride, padding, ceil_mode, counted, divisor
    )
    return pooled


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


def range_of_batch(
    x: torch.Tensor, qmin: int, qmax: int, per_row: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and zero point, both float, of a range that holds 0, as DynamicQuantizeLinear.

    Args:
        x: floats of any shape.
        qmin, qmax: the lowest and the highest code.
        per_row: one range for each row of the last axis, [..., 1], instead of one of rank 0.
    """
    ends = (x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)) if per_row else x.aminmax()
    low, high = ends[0].clamp(max=0), ends[1].clamp(min=0)
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


def _reshape_sizes(x: torch.Tensor, sizes: Sequence[Any]) -> list[Any]:
    """Return the sizes of an ONNX Reshape: 0 means the size of the input's dimension."""
    zero = [isinstance(size, int) and size == 0 for size in sizes]
    return [x.shape[i] if z and i < x.dim() else sizes[i] for i, z in enumerate(zero)]


def _gemm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return F.linear(x, weight.t(), bias)


def _from_blocks(
    packed: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, bits: int
) -> torch.Tensor:
    """Dequantize to float [rows, blocks, block]."""
    rows, blocks, width = packed.shape
    codes = unpack(packed, width * 8 // bits, bits).float()
    if zero_point is None:
        middle = torch.full((rows, blocks), 2.0 ** (bits - 1))
    else:
        middle = unpack(zero_point.reshape(rows, -1), blocks, bits).float()
    return (codes - middle[..., None]) * scale.reshape(rows, blocks, 1)


def _linear_nbits(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    bias: torch.Tensor | None,
    bits: int,
) -> torch.Tensor:
    weight = _from_blocks(packed, scale, zero_point, bits).flatten(1)
    return F.linear(x, weight[:, : x.shape[-1]], bias)


def _embedding_nbits(
    ids: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    bits: int,
) -> torch.Tensor:
    return F.embedding(ids, _from_blocks(packed, scale, zero_point, bits).flatten(1))


def _looked_up(
    ids: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    bits: int,
) -> torch.Tensor:
    return scale.new_empty([*ids.shape, packed[0].numel() * 8 // bits])


def _rows(x: torch.Tensor, packed: torch.Tensor, *rest: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty([*x.shape[:-1], packed.shape[0]])


quantize = define(
    "quantize(Tensor x, Tensor scale, Tensor zero_point) -> Tensor",
    _quantize,
    fake=_quantized,
)
"""QuantizeLinear, per tensor: saturate(rint(x / scale) + zero_point) in zero_point's dtype."""

dequantize = define(
    "dequantize(Tensor codes, Tensor scale, Tensor zero_point, int? axis) -> Tensor",
    _dequantize,
    fake=_dequantized,
)
"""DequantizeLinear: f32(codes - zero_point) * scale; per channel along `axis` unless None."""

embedding = define("embedding(Tensor ids, Tensor weight) -> Tensor", _embedding)
"""Gather: rows of a table [rows, width] by ids of any shape."""

embedding_codes = define(
    "embedding_codes(Tensor ids, Tensor codes, Tensor scale) -> Tensor", _embedding_codes
)
"""Rows of int8 codes [rows, width], each dequantized with its own scale [rows]."""

idle = define("idle(Tensor x) -> Tensor", torch.clone, fake=torch.empty_like)
"""Max of one tensor, the identity. Between a float operator and the quantization of its result it
keeps a runtime from using the integer kernel."""

pad_codes = define(
    "pad_codes(Tensor codes, int[] widths, int value) -> Tensor", _pad_codes, fake=_padded
)
"""Pad with a code; `widths` as in torch: (begin, end) pairs from the last dimension."""

conv = define(
    "conv(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] pads, int[] dilation,"
    " int groups) -> Tensor",
    _conv,
)
"""Conv over 1, 2 or 3 spatial dimensions; `pads` are all beginnings, then all ends, as in ONNX."""

conv_transpose = define(
    "conv_transpose(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding,"
    " int[] output_padding, int groups, int[] dilation) -> Tensor",
    _conv_transpose,
)
"""ConvTranspose over 1, 2 or 3 spatial dimensions; the weight is [in, out / groups, ...]."""

max_pool = define(
    "max_pool(Tensor x, int[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil_mode)"
    " -> Tensor",
    _max_pool,
)
"""MaxPool over 1, 2 or 3 spatial dimensions, padded equally at both ends."""

average_pool = define(
    "average_pool(Tensor x, int[] kernel, int[] stride, int[] padding, bool ceil_mode,"
    " bool counted, int? divisor) -> Tensor",
    _average_pool,
)
"""AveragePool, padded as `max_pool`; `counted`: padding counts in the mean. With a `divisor`: the
sum of a window divided by it."""

dynamic_linear = define(
    "dynamic_linear(Tensor x, Tensor codes, Tensor scale, Tensor? bias) -> Tensor",
    _dynamic_linear,
    fake=_columns,
)
"""x @ (codes * scale) + bias, x quantized to uint8 in its own range; codes are int8, [in, out]."""

gemm = define("gemm(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _gemm)
"""Gemm: x @ weight + bias; the weight is [in, out], as integer kernels require."""

linear_nbits = define(
    "linear_nbits(Tensor x, Tensor packed, Tensor scale, Tensor? zero_point, Tensor? bias,"
    " int bits) -> Tensor",
    _linear_nbits,
    fake=_rows,
)
"""MatMulNBits: `packed` is [out, blocks, bytes], codes and zero points as of `core.packed_codes`;
without zero points they are in the middle of the range. Scales are [out, blocks]."""

embedding_nbits = define(
    "embedding_nbits(Tensor ids, Tensor packed, Tensor scale, Tensor? zero_point, int bits)"
    " -> Tensor",
    _embedding_nbits,
    fake=_looked_up,
)
"""GatherBlockQuantized: rows of a weight as of `linear_nbits`, with full blocks only."""

rescale = define("rescale(Tensor x, float factor) -> Tensor", lambda x, factor: x * factor)
"""x * factor: the same codes with `factor` times the scale."""

reshape = define(
    "reshape(Tensor x, SymInt[] sizes) -> Tensor",
    lambda x, sizes: x.reshape(_reshape_sizes(x, sizes)).clone(),
    fake=lambda x, sizes: x.new_empty(x.reshape(_reshape_sizes(x, sizes)).shape),
)
"""Reshape: ATen's, but opaque."""

global_average_pool = define("global_average_pool(Tensor x) -> Tensor", _global_average_pool)
"""GlobalAveragePool: the mean over all dimensions but the first two, kept with size 1."""


def groups_of(layer: fx.Node) -> int:
    """Return the groups of a convolution; 1 for other layers."""
    if layer.target not in (conv, conv_transpose):
        return 1
    return int(layer.args[6])  # type: ignore[arg-type]  # a number
