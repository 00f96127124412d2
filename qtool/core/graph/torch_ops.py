"""Torch operators of qtool, each with the semantics of one ONNX operator.

conv and global_average_pool are composite: torch decomposes them for autograd and devices.
quantize, dequantize, dequantize_once, pad_codes, idle, reshape and the linear layers on integer
weights occur only in graphs to export; they are opaque, so that tracing is fast and adds no guards
on dynamic sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from qtool.core.graph.arguments import integer
from qtool.core.packed_codes import unpack
from qtool.core.quant_params import affine_codes, storage_qtype
from qtool.core.spatial_functions import (
    ADAPTIVE_AVERAGE_POOL,
    ADAPTIVE_MAX_POOL,
    CONV,
    CONV_TRANSPOSE,
    MAX_POOL,
    divided_pool,
)
from qtool.core.types import UINT8

_lib = torch.library.Library("qtool", "DEF")


def operator(
    *,
    name: str = "",
    fake: Callable[..., Any] | None = None,
    sizes: str = "int",
    derivative: tuple[Callable[..., None], Callable[..., Any]] | None = None,
) -> Callable[[Callable[..., Any]], torch._ops.OpOverload]:
    """Decorate the kernel of an operator `qtool::...`, whose schema is that of the function.

    Args:
        name: name of the operator, by default that of the function.
        fake: infers the result of an opaque operator; None: the operator is composite.
        sizes: type of whole numbers in the schema, "SymInt" if they may be dynamic sizes.
        derivative: functions that set up the context of an opaque operator and run it backwards,
            as of `torch.library.register_autograd`; None: it has no derivative.
    """

    def define(kernel: Callable[..., Any]) -> torch._ops.OpOverload:
        schema = torch.library.infer_schema(kernel, mutates_args=()).replace("SymInt", sizes)
        own = _lib.define(f"{name or kernel.__name__}{schema}")
        dispatch = "CompositeExplicitAutograd" if fake else "CompositeImplicitAutograd"
        _lib.impl(own, kernel, dispatch)
        if fake is not None:
            torch.library.register_fake(f"qtool::{own}", fake, lib=_lib)
        if derivative is not None:
            keep, backward = derivative
            torch.library.register_autograd(f"qtool::{own}", backward, setup_context=keep, lib=_lib)
        overload: torch._ops.OpOverload = getattr(torch.ops.qtool, own).default
        return overload

    return define


def per_channel(t: Tensor, axis: int | None, rank: int) -> Tensor:
    """Return rank-1 parameters reshaped to broadcast along `axis` of a tensor of this rank."""
    return t if axis is None else t.reshape([-1 if d == axis % rank else 1 for d in range(rank)])


@operator(fake=lambda x, _, zero_point: torch.empty_like(x, dtype=zero_point.dtype))
def quantize(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """QuantizeLinear, per tensor: saturate(rint(x / scale) + zero_point) in zero_point's dtype."""
    codes = affine_codes(x, scale, zero_point.to(torch.float32), storage_qtype(zero_point.dtype))
    return codes.to(zero_point.dtype)


@operator(fake=lambda codes, scale, *_: torch.empty_like(codes, dtype=scale.dtype))
def dequantize(codes: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None) -> Tensor:
    """DequantizeLinear: f32(codes - zero_point) * scale; per channel along `axis` unless None."""
    scale = per_channel(scale, axis, codes.dim())
    zero_point = per_channel(zero_point, axis, codes.dim())
    return (codes.to(torch.int32) - zero_point.to(torch.int32)).to(torch.float32) * scale


@operator(fake=lambda codes, scale: torch.empty_like(codes, dtype=scale.dtype))
def dequantize_once(codes: Tensor, scale: Tensor) -> Tensor:
    """Cast and Mul: f32(codes) * scale, of a scale that broadcasts. Of stored codes a runtime
    computes it when it loads the file, whereas a DequantizeLinear stays in the graph."""
    return codes.to(torch.float32) * scale


@operator()
def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Gather: rows of a table [rows, width] by ids of any shape."""
    return F.embedding(ids, weight)


@operator()
def embedding_codes(ids: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """Rows of int8 codes [rows, width], each dequantized with its own scale [rows]."""
    return codes[ids].float() * scale[ids].unsqueeze(-1)


@operator(fake=torch.empty_like)
def idle(x: Tensor) -> Tensor:
    """Max of one tensor, the identity. Between a float operator and the quantization of its result
    it keeps a runtime from using the integer kernel."""
    return x.clone()


def _padded(codes: Tensor, widths: list[int], value: int) -> Tensor:
    size = list(codes.shape)
    for i in range(len(widths) // 2):
        size[-1 - i] += widths[2 * i] + widths[2 * i + 1]
    return codes.new_empty(size)


@operator(fake=_padded)
def pad_codes(codes: Tensor, widths: list[int], value: int) -> Tensor:
    """Pad with a code; `widths` as in torch: (begin, end) pairs from the last dimension."""
    return F.pad(codes, widths, value=value)


@operator()
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    pads: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Conv over 1, 2 or 3 spatial dimensions; `pads` are all beginnings, then all ends, as in
    ONNX."""
    rank = len(stride)
    before, after = pads[:rank], pads[rank:]
    if rank == 2 and weight.shape[3:] == x.shape[3:] == (1,) and pads[1::2] == [0, 0]:
        line = (t[..., 0] for t in (x, weight))  # wide layers take a quarter of the time
        result: Tensor = conv(*line, bias, stride[:1], pads[::2], dilation[:1], groups)
        return result[..., None]
    if before == after:
        return CONV[rank](x, weight, bias, stride, before, dilation, groups)
    widths = [w for pair in zip(reversed(before), reversed(after), strict=True) for w in pair]
    return CONV[rank](F.pad(x, widths), weight, bias, stride, 0, dilation, groups)


@operator()
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    output_padding: list[int],
    groups: int,
    dilation: list[int],
) -> Tensor:
    """ConvTranspose over 1, 2 or 3 spatial dimensions; the weight is [in, out / groups, ...]."""
    function = CONV_TRANSPOSE[len(stride)]
    return function(x, weight, bias, stride, padding, output_padding, groups, dilation)


@operator()
def max_pool(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> Tensor:
    """MaxPool over 1, 2 or 3 spatial dimensions, padded equally at both ends."""
    return MAX_POOL[len(kernel)](x, kernel, stride, padding, dilation, ceil_mode)


@operator()
def average_pool(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    counted: bool,
    divisor: int | None,
) -> Tensor:
    """AveragePool, padded as `max_pool`; `counted`: padding counts in the mean. With a `divisor`:
    the sum of a window divided by it."""
    return divided_pool(x, kernel, stride, padding, ceil_mode, counted, divisor)


@operator()
def adaptive_average_pool(x: Tensor, sizes: list[int]) -> Tensor:
    """Means over windows that depend on the sizes of x [N, C, ...], as torch's adaptive pools.

    Args:
        x: input with 1, 2 or 3 spatial dimensions.
        sizes: number of windows along each of them; 0 leaves a dimension as it is.
    """
    return ADAPTIVE_AVERAGE_POOL[len(sizes)](x, _windows(x, sizes))


@operator()
def adaptive_max_pool(x: Tensor, sizes: list[int]) -> Tensor:
    """The largest values in windows that depend on the sizes of x; see `adaptive_average_pool`."""
    return ADAPTIVE_MAX_POOL[len(sizes)](x, _windows(x, sizes))


def _windows(x: Tensor, sizes: Sequence[int]) -> list[int]:
    return [count or size for count, size in zip(sizes, x.shape[2:], strict=True)]


@operator()
def global_average_pool(x: Tensor) -> Tensor:
    """GlobalAveragePool: the mean over all dimensions but the first two, kept with size 1."""
    return x.mean(dim=list(range(2, x.dim())), keepdim=True)


def range_of_batch(x: Tensor, qmin: int, qmax: int, per_row: bool = False) -> tuple[Tensor, Tensor]:
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


@operator(fake=lambda x, codes, *_: x.new_empty([*x.shape[:-1], codes.shape[-1]]))
def dynamic_linear(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """x @ (codes * scale) + bias, x quantized to uint8 in its own range; codes: int8 [in, out]."""
    x_scale, zero = range_of_batch(x, UINT8.qmin, UINT8.qmax)
    quantized = affine_codes(x, x_scale, zero, UINT8) - zero
    sums = quantized.double() @ codes.double()  # integers, exact
    result = sums.to(torch.float32) * (x_scale * scale)
    return result if bias is None else result + bias


@operator()
def gemm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Gemm: x @ weight + bias; the weight is [in, out], as integer kernels require."""
    return F.linear(x, weight.t(), bias)


def _from_blocks(packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int) -> Tensor:
    """Dequantize to float [rows, blocks, block]."""
    rows, blocks, width = packed.shape
    codes = unpack(packed, width * 8 // bits, bits).float()
    if zero_point is None:
        middle = torch.full((rows, blocks), 2.0 ** (bits - 1), dtype=torch.float32)
    else:
        middle = unpack(zero_point.reshape(rows, -1), blocks, bits).float()
    return (codes - middle[..., None]) * scale.reshape(rows, blocks, 1)


@operator(fake=lambda x, packed, *_: x.new_empty([*x.shape[:-1], packed.shape[0]]))
def linear_nbits(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    bias: Tensor | None,
    bits: int,
) -> Tensor:
    """MatMulNBits: `packed` is [out, blocks, bytes], codes and zero points as of
    `core.packed_codes`; without zero points they are in the middle of the range. Scales are [out,
    blocks]."""
    weight = _from_blocks(packed, scale, zero_point, bits).flatten(1)
    return F.linear(x, weight[:, : x.shape[-1]], bias)


def _looked_up(
    ids: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int
) -> Tensor:
    return scale.new_empty([*ids.shape, packed[0].numel() * 8 // bits])


@operator(fake=_looked_up)
def embedding_nbits(
    ids: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int
) -> Tensor:
    """GatherBlockQuantized: rows of a weight as of `linear_nbits`, with full blocks only."""
    return F.embedding(ids, _from_blocks(packed, scale, zero_point, bits).flatten(1))


def _keep_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ids, ctx.experts = inputs
    ctx.save_for_backward(x, weight, ids)


def _expert_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
    x, weight, ids = ctx.saved_tensors
    stacked = weight.unflatten(0, (ctx.experts, -1))
    before, own = torch.zeros_like(x), torch.zeros_like(stacked)
    for expert in ids.unique().tolist():
        rows = ids == expert
        before[rows] = gradient[rows] @ stacked[expert]
        own[expert] = gradient[rows].mT @ x[rows]
    return before, own.flatten(0, 1), None, None


@operator(
    fake=lambda x, weight, _, experts: x.new_empty(x.shape[0], weight.shape[0] // experts),
    derivative=(_keep_product, _expert_gradients),
)
def expert_linear(x: Tensor, weight: Tensor, ids: Tensor, experts: int) -> Tensor:
    """Rows x [rows, in], each times the matrix of its expert: ids [rows], weight [experts x out,
    in]. The result is [rows, out]."""
    stacked = weight.unflatten(0, (experts, -1))
    result = x.new_zeros(len(x), stacked.shape[1])
    for expert in ids.unique().tolist():
        rows = ids == expert
        result[rows] = F.linear(x[rows], stacked[expert])
    return result


def _rows_of_experts(x: Tensor, packed: Tensor, *others: Any) -> Tensor:
    return x.new_empty(x.shape[0], packed.shape[0] // others[3])


@operator(fake=_rows_of_experts)
def expert_nbits(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    ids: Tensor,
    experts: int,
    bits: int,
) -> Tensor:
    """`expert_linear` with a weight as of `linear_nbits`, with full blocks only."""
    weight = _from_blocks(packed, scale, zero_point, bits).flatten(1)
    result: Tensor = expert_linear(x, weight, ids, experts)
    return result


@operator()
def rescale(x: Tensor, factor: float) -> Tensor:
    """x * factor: the same codes with `factor` times the scale."""
    return x * factor


def _reshape_sizes(x: Tensor, sizes: Sequence[Any]) -> list[Any]:
    """Return the sizes of an ONNX Reshape: 0 means the size of the input's dimension."""
    zero = [isinstance(size, int) and size == 0 for size in sizes]
    return [x.shape[i] if z and i < x.dim() else sizes[i] for i, z in enumerate(zero)]


@operator(
    fake=lambda x, sizes: x.new_empty(x.reshape(_reshape_sizes(x, sizes)).shape), sizes="SymInt"
)
def reshape(x: Tensor, sizes: list[int]) -> Tensor:
    """Reshape: ATen's, but opaque."""
    return x.reshape(_reshape_sizes(x, sizes)).clone()


def groups_of(layer: fx.Node) -> int:
    """Return the groups of a convolution, or the experts of a product; 1 for other layers."""
    if layer.target is expert_linear:
        return integer(layer, 3)
    if layer.target not in (conv, conv_transpose):
        return 1
    return integer(layer, 6)
