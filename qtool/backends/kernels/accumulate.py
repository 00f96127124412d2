"""Exact integer accumulation on floating-point hardware.

Every product of two 8-bit codes is an integer of at most 17 bits. A sum of them, in any order
and with any fused multiply-add, is exact in float32 while every partial sum stays within 2**24,
and in float64 within 2**53. A partial sum is the sum of some subset of the products, so it lies
between the sum of all that can be negative and the sum of all that can be positive; both are
known from the weights and the range of the activation codes when a kernel is bound.

Measured (one thread, AVX512-VNNI; ms): a 64-channel 3x3 convolution on 32 x 8 x 8 takes 1.2 in
float32, 1.4 in two chunks of it, 6.2 in float64; a 128 x 768 x 3072 product 11 in float32, 17 in
float64, 1.4 in torch._int_mm. The last needs int8 activations and an int8 im2col that costs more
than it saves, and its uint8 x int8 form saturates on CPUs without VNNI, so: float32 where the
bound proves it, else chunks of input channels that satisfy it, else float64.

The bfloat16 modes of oneDNN change nothing, since codes minus a zero point have at most 8
significant bits and sums stay in float32. NNPACK's Winograd form would, so it is kept out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qtool.backends.kernels.params import check_bias, per_tensor, spatial
from qtool.backends.kernels.windows import pad_spatial
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.spatial_functions import CONV, CONV_TRANSPOSE

Accumulate = Callable[..., Tensor]
"""Takes codes, returns int32 accumulators: integer values in a float32 or float64 tensor."""

FLOAT32_EXACT = 2**24
_FLOAT64_EXACT = 2**53
_INT32_MAX = 2**31 - 1
_PIECE = 2**16
"""Weights whose bound is computed at once: the allocator would keep the memory of larger pieces."""


def subset_bound(weight: Tensor, low: int, high: int, dims: tuple[int, ...]) -> Tensor:
    """Largest magnitude of any subset sum of weight * v, v in [low, high], over `dims`.

    `weight` holds integers in int64; low <= 0 <= high. The result is int64.
    """
    up = weight.clamp(min=0).sum(dims)
    down = up - weight.sum(dims)
    return torch.maximum(up * high - down * low, down * high - up * low)


def conv_accumulator(
    x: QuantParams,
    w: QuantParams,
    weight: Tensor,
    bias: Tensor | None,
    *,
    stride: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Accumulate:
    """Bind sum((x - zx) * (w - zw)) + bias of a convolution; pads contribute 0.

    `weight` codes are [O, I / groups, *kernel], `bias` int32 codes [O]; `pads` lists all begins,
    then all ends. The bound function maps codes [N, I, *spatial] to [N, O, *out].
    """
    rank = weight.dim() - 2
    if rank not in CONV:
        raise KernelError(f"convolution weight has {weight.dim()} axes; 3, 4 or 5 are possible")
    strides = spatial(stride, rank, "stride")
    dilations = spatial(dilation, rank, "dilation")
    offsets = check_bias(bias, weight.shape[0], x)
    stored = _Weight.of(w, weight, axis=0)
    edges = spatial(pads, 2 * rank, "pads")
    # Symmetric pads are applied by the convolution, others before it.
    inside = edges[:rank] if edges[:rank] == edges[rank:] else (0,) * rank
    before = () if edges[:rank] == edges[rank:] else edges

    def run(piece: Tensor, part: Tensor, shift: Tensor | None) -> Tensor:
        padded = pad_spatial(piece, before)
        with torch.backends.nnpack.flags(enabled=False):
            return CONV[rank](padded, part, shift, strides, inside, dilations, groups)

    bound = stored.bound(x) + offsets.abs()
    return _plan(x, stored, offsets, bound, run, chunk_axis=1 if groups == 1 else None)


def conv_transpose_accumulator(
    x: QuantParams,
    w: QuantParams,
    weight: Tensor,
    bias: Tensor | None,
    *,
    stride: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
) -> Accumulate:
    """As `conv_accumulator` for a transposed convolution: weight [I, O, *kernel]."""
    rank = weight.dim() - 2
    if rank not in CONV_TRANSPOSE:
        raise KernelError(f"transposed convolution weight has {weight.dim()} axes; 3 to 5 are")
    strides = spatial(stride, rank, "stride")
    extra = spatial(output_padding, rank, "output_padding")
    crop = [-p for p in spatial(pads, 2 * rank, "pads")]
    offsets = check_bias(bias, weight.shape[1], x)
    stored = _Weight.of(w, weight, axis=1)
    per_output = stored.values(torch.int64).transpose(0, 1)
    bound = _Weight(per_output).bound(x) + offsets.abs()

    def run(piece: Tensor, part: Tensor, shift: Tensor | None) -> Tensor:
        # Cropping afterwards lets begin and end pads differ; output_padding only adds cells.
        grow = [0] * rank + list(extra)
        full = CONV_TRANSPOSE[rank](piece, part, None, strides)
        cut = pad_spatial(full, [c + g for c, g in zip(crop, grow, strict=True)])
        return cut if shift is None else cut + shift.reshape(-1, *[1] * rank)

    return _plan(x, stored, offsets, bound, run, chunk_axis=None)


def linear_accumulator(
    x: QuantParams, w: QuantParams, weight: Tensor, bias: Tensor | None
) -> Accumulate:
    """Bind sum((x - zx) * (w - zw)) + bias: codes [..., I], weight [O, I] -> [..., O]."""
    if weight.dim() != 2:
        raise KernelError(f"linear weight has {weight.dim()} axes, expected [out, in]")
    offsets = check_bias(bias, weight.shape[0], x)
    stored = _Weight.of(w, weight, axis=0)

    def run(piece: Tensor, part: Tensor, shift: Tensor | None) -> Tensor:
        return F.linear(piece, part, shift)

    return _plan(x, stored, offsets, stored.bound(x) + offsets.abs(), run, chunk_axis=-1)


def matmul_accumulator(a: QuantParams, b: QuantParams) -> Accumulate:
    """Bind sum((a - za) * (b - zb)) of two activations: [..., M, K] @ [..., K, N].

    float32 or float64 is chosen per call, from K and the ranges of the codes.
    """
    zero_a, zero_b = per_tensor(a, "first input")[1], per_tensor(b, "second input")[1]
    reach, narrow = max(_reach(a)) * max(_reach(b)), a.qtype.bits <= 8

    def accumulate(left: Tensor, right: Tensor) -> Tensor:
        dtype = torch.float32 if left.shape[-1] * reach <= FLOAT32_EXACT else torch.float64
        product = torch.matmul(left.to(dtype) - zero_a, right.to(dtype) - zero_b)
        wraps = narrow and left.shape[-1] * reach > _INT32_MAX
        return _wrap(product) if wraps else product

    return accumulate


@dataclass(frozen=True, eq=False)
class _Weight:
    """Weights as codes.

    They are converted to float on each call, whose cost is small next to the products, and take a
    quarter of the memory. Weights of 2-d convolutions are channels-last, the faster layout.

    Attributes:
        codes: codes of the weight.
        zero: zero point, broadcast over the codes; None for 0.
    """

    codes: Tensor
    zero: Tensor | None = None

    @classmethod
    def of(cls, w: QuantParams, codes: Tensor, axis: int) -> _Weight:
        layout = torch.channels_last if codes.dim() == 4 else torch.contiguous_format
        zero = w.zero_point
        if zero.numel() > 1:
            shape = [1] * codes.dim()
            shape[axis] = -1
            zero = zero.reshape(shape)
        return cls(codes.contiguous(memory_format=layout), zero if bool(zero.any()) else None)

    def values(self, dtype: torch.dtype, inputs: slice = slice(None)) -> Tensor:
        """Return codes minus zero point, of the channels `inputs` of axis 1."""
        values = self.codes[:, inputs].to(dtype)
        return values if self.zero is None else values - self.zero.to(dtype)

    def bound(self, x: QuantParams, inputs: slice = slice(None)) -> Tensor:
        """Return `subset_bound` of each channel of axis 0 for all codes of x; int64."""
        per_tensor(x, "input")
        below, above = _reach(x)
        codes = self.codes[:, inputs]
        zero = torch.zeros(()) if self.zero is None else self.zero
        zeros = zero.to(torch.int64).expand(len(codes), *[1] * (codes.dim() - 1))
        rows = max(1, _PIECE * len(codes) // max(1, codes.numel()))
        dims = tuple(range(1, codes.dim()))
        parts = zip(codes.split(rows), zeros.split(rows), strict=True)
        return torch.cat([subset_bound(c - z, -below, above, dims) for c, z in parts])


def _reach(x: QuantParams) -> tuple[int, int]:
    """Return the largest distance of codes below and above the zero point."""
    zero = int(x.zero_point)
    return max(zero - x.qtype.qmin, 0), max(x.qtype.qmax - zero, 0)


def _wrap(x: Tensor) -> Tensor:
    """Return exact sums as a 32-bit accumulator holds them."""
    return x.to(torch.int64).to(torch.int32).to(torch.float64)


def _plan(
    x: QuantParams,
    weight: _Weight,
    bias: Tensor,
    bound: Tensor,
    run: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    *,
    chunk_axis: int | None,
) -> Accumulate:
    """Choose the arithmetic the bound allows: float32, chunks of float32, float64."""
    zero = int(x.zero_point)
    worst = int(bound.max()) if bound.numel() else 0
    is_narrow = x.qtype.bits <= 8  # wider codes have wider sums, and would need too many chunks
    wraps = worst > _INT32_MAX and is_narrow
    if worst > _FLOAT64_EXACT:
        raise KernelError("a sum of products could exceed 2**53; the weight is too large")
    shift = bias if bool(bias.any()) else None
    if worst <= FLOAT32_EXACT:
        shift32 = None if shift is None else shift.to(torch.float32)

        def narrow(codes: Tensor) -> Tensor:
            piece = codes.to(torch.float32)
            piece = piece.sub_(zero) if zero else piece
            return run(piece, weight.values(torch.float32), shift32)

        return narrow
    chunks = _chunks(x, weight, worst) if chunk_axis is not None and is_narrow else None
    shift64 = None if shift is None else shift.to(torch.float64)
    if chunk_axis is not None and chunks is not None:
        return _chunked(weight, chunks, chunk_axis, zero, shift64, run, wrap=wraps)

    def wide(codes: Tensor) -> Tensor:
        total = run(codes.to(torch.float64) - zero, weight.values(torch.float64), shift64)
        return _wrap(total) if wraps else total

    return wide


def _chunks(x: QuantParams, weight: _Weight, worst: int) -> list[slice] | None:
    """Return ranges of input channels whose sums fit float32, None if one channel does not."""
    inputs = weight.codes.shape[1]
    start = -(-worst // FLOAT32_EXACT)
    for count in range(start, min(inputs, 2 * start + 2) + 1):
        size = -(-inputs // count)
        cuts = [slice(i, min(i + size, inputs)) for i in range(0, inputs, size)]
        if max(int(weight.bound(x, cut).max()) for cut in cuts) <= FLOAT32_EXACT:
            return cuts
    return None


def _chunked(
    weight: _Weight,
    cuts: list[slice],
    axis: int,
    zero: int,
    shift: Tensor | None,
    run: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    *,
    wrap: bool,
) -> Accumulate:
    """float32 per chunk of input channels (`axis` of the codes), summed in float64."""
    rank = weight.codes.dim() - 2

    def accumulate(codes: Tensor) -> Tensor:
        total: Tensor | None = None
        for cut in cuts:
            piece = codes.narrow(axis, cut.start, cut.stop - cut.start).to(torch.float32)
            sums = run(piece.sub_(zero), weight.values(torch.float32, cut), None)
            total = sums.to(torch.float64) if total is None else total.add_(sums)
        assert total is not None
        if shift is not None:
            total += shift.reshape(-1, *[1] * rank)
        return _wrap(total) if wrap else total

    return accumulate
