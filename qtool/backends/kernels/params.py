"""Checks of quantization parameters in binders, and the bounds of a fused activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import CallEdit
from qtool.core.types import INT16, Bounds, QType

Kernel = Callable[..., Tensor]
"""A bound kernel: takes code tensors, returns a code tensor."""

NO_BOUNDS: Bounds = (None, None)
RELU: Bounds = (0.0, None)
RELU6: Bounds = (0.0, 6.0)
RELU_N1_TO_1: Bounds = (-1.0, 1.0)


def f32(x: float) -> float:
    """Round a double to float32.

    One operation on float32 values done in double and rounded once more is the correctly
    rounded float32 operation, because 53 >= 2 * 24 + 2.
    """
    return float(torch.tensor(x, dtype=torch.float64).to(torch.float32))


def per_tensor(params: QuantParams, what: str) -> tuple[float, int]:
    """Return scale (a float32 value) and zero point; KernelError if they are per channel."""
    if params.scale.numel() != 1:
        raise KernelError(f"{what} has per-channel parameters; only weights may, use per tensor")
    return float(params.scale), int(params.zero_point)


def operands(
    a: QuantParams, b: QuantParams, out: QuantParams
) -> tuple[tuple[float, int], tuple[float, int], tuple[float, int]]:
    """Return scale and zero point of both inputs and of the output.

    Raises:
        KernelError: they have several types, or one has a scale per channel.
    """
    if len({p.qtype.dtype for p in (a, b, out)}) != 1:
        raise KernelError(
            f"inputs and output must have one type, not {a.qtype}, {b.qtype} -> {out.qtype}"
        )
    return per_tensor(a, "first input"), per_tensor(b, "second input"), per_tensor(out, "output")


def is_int16(qtype: QType) -> bool:
    """Return whether codes are int16, of the full range or a narrower one."""
    return qtype.dtype == INT16.dtype


def channel_scales(params: QuantParams, channels: int) -> list[float]:
    """Return one scale of a weight per output channel; a per-tensor scale is repeated."""
    scales = [float(s) for s in params.scale.reshape(-1)]
    if len(scales) not in (1, channels):
        raise KernelError(
            f"weight has {len(scales)} scales for {channels} output channels",
            CallEdit("quantize it per output channel or per tensor"),
        )
    return scales * channels if len(scales) == 1 else scales


def same_params(a: QuantParams, b: QuantParams) -> bool:
    """Return whether equal codes mean equal values."""
    return (
        a.qtype.dtype == b.qtype.dtype
        and torch.equal(a.scale, b.scale)
        and torch.equal(a.zero_point, b.zero_point)
    )


def check_bias(bias: Tensor | None, channels: int, x: QuantParams) -> Tensor:
    """Return bias codes as int64 [channels], zeros without bias.

    Raises:
        KernelError: beyond int32, for an input `x` of 8 bits; of wider ones sums have 64 bits.
    """
    if bias is None:
        return torch.zeros(channels, dtype=torch.int64)
    if bias.shape != (channels,):
        raise KernelError(f"bias has shape {tuple(bias.shape)}, expected ({channels},)")
    codes = bias.to(torch.int64)
    narrow = x.qtype.bits <= 8
    if bias.is_floating_point() or (narrow and bool((codes.abs() > 2**31 - 1).any())):
        raise KernelError(
            "bias is not int32 codes (or overflows int32)",
            CallEdit(
                "quantize it with scale input * weight, and widen the weight scale where it "
                "overflows"
            ),
        )
    return codes


def spatial(value: int | Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """Return an attribute as one int per spatial axis (twice as many for pads)."""
    values = (value,) * rank if isinstance(value, int) else tuple(int(v) for v in value)
    if len(values) != rank:
        raise KernelError(f"{what} has {len(values)} values, expected {rank}")
    return values
